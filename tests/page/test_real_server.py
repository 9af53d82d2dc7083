"""The page and the server that it is made for, over tiny models: `-m page`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install 'dyspec-edge[page]'")
from playwright.sync_api import expect

from dyspec_edge.server.guard import Rules
from dyspec_edge.server.run import ServerConfig
from tests.conftest import TinyPair
from tests.engines import tiny_config
from tests.page.conftest import OpenPage
from tests.server.conftest import TinyServer, running

pytestmark = pytest.mark.page

WIDE = {"viewport": {"width": 1280, "height": 800}}


@pytest.fixture
def real_server(tiny_pair: TinyPair) -> Iterator[TinyServer]:
    config = tiny_config(*tiny_pair, num_ctx=512, num_conversations=2)
    with running(config, ServerConfig("tiny", Rules(keys=("secret",)))) as found:
        yield found


def test_a_key_is_asked_for_and_a_reply_comes_with_its_trees(
    real_server: TinyServer, open_page: OpenPage, console_errors: list[str]
) -> None:
    page = open_page(f"{real_server.address}/", **WIDE)
    message = page.get_by_label("Message", exact=True)
    message.fill("the tree is on")
    page.keyboard.press("Enter")
    expect(page.get_by_text("wants an API key").first).to_be_visible()
    page.get_by_role("button", name="Settings").first.click()
    page.get_by_label("API key").fill("secret")
    page.get_by_label("Seed").fill("1")
    page.get_by_label("Most tokens of a reply").fill("40")
    page.get_by_role("button", name="Save").click()
    message.fill("the tree is on")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    reply = page.locator("article.assistant").last
    expect(reply).to_contain_text("tokens per pass")
    expect(page.get_by_role("tree").get_by_role("treeitem").first).to_be_visible()
    expect(reply).to_contain_text("40 tokens")
    unexpected = [line for line in console_errors if "401" not in line]
    assert unexpected == []
