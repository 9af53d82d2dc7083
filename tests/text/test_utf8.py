"""Bytes to characters: every way of cutting the bytes gives the same text."""

from __future__ import annotations

import pytest

from dyspec_edge.errors import DyspecError
from dyspec_edge.text.utf8 import Utf8Stream, decode

HARD_TEXT = "family 👨‍👩‍👧‍👦, Korean 한국어, Thai ภาษาไทย, flag 🇰🇷, é"


def test_each_byte_alone_gives_the_whole_text() -> None:
    stream = Utf8Stream()
    parts = [stream.feed(bytes([byte])) for byte in HARD_TEXT.encode()]
    assert "".join(parts) == HARD_TEXT
    assert stream.flush() == ""
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_pieces_of_any_size_agree(size: int) -> None:
    data = HARD_TEXT.encode()
    stream = Utf8Stream()
    text = "".join(stream.feed(data[i : i + size]) for i in range(0, len(data), size))
    assert text + stream.flush() == HARD_TEXT


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"a\x80b", b"\xc3(", b"\xe2\x82", b"\xe2\x28\xa1", b"\xf0\x9f\x98", b"\xed\xa0\x80"],
)
def test_invalid_bytes_become_what_decode_makes_of_them(data: bytes) -> None:
    stream = Utf8Stream()
    text = "".join(stream.feed(bytes([byte])) for byte in data)
    assert text + stream.flush() == data.decode("utf-8", "replace")


def test_an_incomplete_character_is_held_until_it_is_lost() -> None:
    stream = Utf8Stream()
    assert stream.feed("é".encode()[:1]) == ""
    assert stream.feed(b"x") == "\ufffdx"
    assert stream.flush() == ""


def test_flush_starts_afresh() -> None:
    stream = Utf8Stream()
    stream.feed(b"\xf0\x9f")
    assert stream.flush() == "\ufffd"
    assert stream.feed("é".encode()) == "é"


def test_a_byte_order_mark_is_no_part_of_a_text() -> None:
    assert decode(b"\xef\xbb\xbfhello\r\n", "a file") == "hello\r\n"
    with pytest.raises(DyspecError, match="a file is not UTF-8: byte 0xff at offset 4"):
        decode(b"\xef\xbb\xbfh\xff", "a file")
