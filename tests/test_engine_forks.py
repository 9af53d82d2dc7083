"""Processes that were forked after an engine was loaded: they have none of llama.cpp's threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dyspec_edge.engine import Engine
from dyspec_edge.errors import DyspecError
from tests.conftest import TinyPair
from tests.engines import NO_END, PROMPT, opened, text_of

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

LOAD_ANEW = "the engine was loaded before this process was forked; load it after the fork"


@pytest.fixture(scope="module")
def engine(tiny_pair: TinyPair) -> Iterator[Engine]:
    with opened(*tiny_pair, num_threads=2) as engine:
        yield engine


def said_by_child(act: Callable[[], object]) -> str:
    """What `act` gives or raises in a forked process; "" if it does not come to an end."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        try:
            answer = repr(act())
        except DyspecError as error:
            answer = str(error)
        except BaseException as error:  # whatever it is, the parent's tests must not go on here
            answer = repr(error)
        os.write(send, answer.encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as answered:
        said = answered.read()
    os.waitpid(child, 0)
    return said


@contextmanager
def elsewhere(act: Callable[[threading.Event, threading.Event], object]) -> Iterator[None]:
    """Let another thread `act(is_there, may_go)` meanwhile."""
    is_there, may_go = threading.Event(), threading.Event()
    thread = threading.Thread(target=act, args=(is_there, may_go))
    thread.start()
    assert is_there.wait(30)
    try:
        yield
    finally:
        may_go.set()
        thread.join(30)


def test_a_child_is_told_to_load_anew(engine: Engine) -> None:
    text_of(engine)
    assert said_by_child(lambda: engine.generate(PROMPT, max_tokens=2)) == LOAD_ANEW
    assert said_by_child(lambda: engine.prepare(PROMPT)) == LOAD_ANEW
    assert said_by_child(engine.close) == "None"
    assert text_of(engine)


def test_a_child_cannot_go_on_with_a_stream(engine: Engine) -> None:
    stream = engine.stream(PROMPT, sampling=NO_END, max_tokens=9)
    next(stream)
    assert said_by_child(lambda: next(stream)) == LOAD_ANEW
    assert said_by_child(stream.close) == "None"
    assert sum(len(chunk.tokens) for chunk in stream) > 0


def test_a_child_waits_for_no_thread_of_its_parent(engine: Engine) -> None:
    def look(is_there: threading.Event, may_go: threading.Event) -> None:
        with engine._models_lock:  # as `prepare` holds it over a long text
            is_there.set()
            may_go.wait(30)

    def generate(is_there: threading.Event, may_go: threading.Event) -> None:
        def on_prefill(_done: int, _total: int) -> None:
            is_there.set()
            may_go.wait(30)

        engine.generate(PROMPT * 9, max_tokens=2, on_prefill=on_prefill)

    for act in (look, generate):
        with elsewhere(act):
            assert said_by_child(lambda: engine.prepare(PROMPT)) == LOAD_ANEW
            assert said_by_child(engine.render_tree) == LOAD_ANEW
            assert said_by_child(lambda: engine.generate(PROMPT)) == LOAD_ANEW
            assert said_by_child(engine.close) == "None"
    assert text_of(engine)
