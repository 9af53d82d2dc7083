"""A headless Chromium, the fake server, and a page whose console is watched."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.page.fake_server import FakeServer, Reply, Script

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

TEXT = """\
A token tree holds **several guesses** at once. The big model checks all of them in one pass.

```python
def add(a, b):
    return a + b
```

So four tokens may come for the price of one."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    # The sandbox of Chromium does not run as root.
    flags = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(Script(Reply(TEXT))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def console_errors() -> list[str]:
    """What the browser complained about, filled while pages are open."""
    return []


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser, console_errors: list[str]) -> Iterator[OpenPage]:
    """`open_page(address, **options)`: a page in a context of its own with these options."""
    contexts = []

    def note(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            console_errors.append(message.text)

    def open_one(address: str, **options: Any) -> Page:
        context = browser.new_context(**{"reduced_motion": "reduce"} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", note)
        page.on("pageerror", lambda error: console_errors.append(str(error)))
        page.goto(address)
        return page

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture
def chat(open_page: OpenPage, server: FakeServer) -> Page:
    """The chat page in a wide window."""
    return open_page(server.address, viewport={"width": 1280, "height": 800})
