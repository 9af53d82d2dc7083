"""Native objects are freed once, and never used after that."""

from __future__ import annotations

import gc

import pytest

from dyspec_edge.native.handle import Handle


def test_closing_twice_frees_once() -> None:
    freed: list[int] = []
    handle = Handle(16, freed.append)
    assert handle.address == 16
    handle.close()
    handle.close()
    del handle
    gc.collect()
    assert freed == [16]


def test_what_nobody_closed_is_freed_when_nobody_holds_it() -> None:
    freed: list[int] = []
    handle = Handle(16, freed.append)
    user = Handle(32, freed.append, uses=[handle])
    del handle
    gc.collect()
    assert freed == [], "its user holds it"
    del user
    gc.collect()
    assert sorted(freed) == [16, 32]


def test_use_after_close_is_an_error() -> None:
    handle = Handle(16, str)
    user = Handle(32, str, uses=[handle])
    assert (handle.address, user.address) == (16, 32)
    handle.close()
    for closed in (handle, user):
        assert not closed.is_open
        with pytest.raises(ValueError, match="closed"):
            _ = closed.address
    user.close()


def test_closing_what_is_used_frees_its_users_first() -> None:
    freed: list[int] = []
    handle = Handle(16, freed.append)
    user = Handle(32, freed.append)
    user.use(handle)
    late = Handle(48, freed.append, uses=[user])
    handle.close()
    assert freed == [48, 32, 16]
    assert not late.is_open


def test_what_could_not_be_made_is_an_error() -> None:
    with pytest.raises(MemoryError):
        Handle(None, str)
