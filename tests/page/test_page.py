"""The pages in a real browser: `make test ARGS="-m page tests/page"` (page/README.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install 'dyspec-edge[page]'")
from playwright.sync_api import Locator, Page, expect

from dyspec_edge.server.trace import write_trace
from tests.example_steps import example_steps
from tests.page.conftest import TEXT
from tests.page.fake_server import FakeServer, Reply

pytestmark = pytest.mark.page

AXE = Path(__file__).parents[2] / "page" / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"viewport": {"width": 360, "height": 740}}


def ask(page: Page, text: str = "What is a token tree?") -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def finished(page: Page) -> Locator:
    """The last reply, complete."""
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    return page.locator("article.assistant").last


def serious_findings(page: Page) -> list[str]:
    """What axe-core finds that keeps people from using the page."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci --prefix page")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate("axe.run().then((found) => found.violations)")
    return [
        f"{one['id']}: {one['nodes'][0]['html']}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


def test_a_reply_streams_in_and_its_tree_is_drawn(
    chat: Page, server: FakeServer, console_errors: list[str]
) -> None:
    ask(chat)
    reply = finished(chat)
    expect(reply.locator("strong").first).to_have_text("several guesses")
    expect(reply.locator("pre")).to_contain_text("return a + b")
    steps = example_steps(TEXT)
    expect(chat.locator("output")).to_have_text(f"step {len(steps)} of {len(steps)}")
    expect(reply).to_contain_text("tokens per pass")
    request = server.script.requests[0]
    assert request["messages"] == [{"role": "user", "content": "What is a token tree?"}]
    assert request["stream_options"] == {"include_usage": True, "include_tree": True}
    assert "speculation" not in request
    assert console_errors == []


def test_the_drawn_tree_is_the_steps(chat: Page, console_errors: list[str]) -> None:
    ask(chat)
    finished(chat)
    steps = example_steps(TEXT)
    at = next(i for i, s in enumerate(steps) if len(s["emitted"]) >= 3 and len(s["nodes"]) > 8)
    chat.get_by_label("Step", exact=True).fill(str(at))
    nodes = steps[at]["nodes"]
    inner = nodes[1:]
    shown = chat.get_by_role("tree").get_by_role("treeitem")
    expect(shown).to_have_count(len(nodes) + 1)
    for kind, count in {
        "accepted": sum(node["accepted"] for node in inner),
        "refused": sum(node["checked"] and not node["accepted"] for node in inner),
        "unchecked": sum(not node["checked"] for node in inner),
        "own": 1,
    }.items():
        expect(chat.locator(f'[data-kind="{kind}"]')).to_have_count(count)
    edges = chat.locator("path.edge.accepted")
    expect(edges).to_have_count(sum(node["accepted"] for node in inner))
    expect(chat.locator(".emitted")).to_have_text(
        "".join(token["text"] for token in steps[at]["emitted"]).replace(" ", "·")
    )
    own = steps[at]["emitted"][-1]["text"].replace(" ", "·")
    expect(chat.locator('[data-kind="own"]')).to_have_attribute(
        "aria-label", re.compile(f"^{re.escape(own)}, target.s own token$")
    )
    assert console_errors == []


def test_the_tree_by_keyboard_and_as_a_list(chat: Page) -> None:
    ask(chat)
    finished(chat)
    steps = example_steps(TEXT)
    at = next(i for i, s in enumerate(steps) if len(s["emitted"]) >= 3)
    chat.get_by_label("Step", exact=True).fill(str(at))
    chat.get_by_role("treeitem").first.focus()
    chat.keyboard.press("ArrowRight")
    node = steps[at]["nodes"][1]
    expect(chat.locator(".node-figures")).to_contain_text(f"{100 * node['probability']:.1f} %")
    expect(chat.locator(".node-figures")).to_contain_text("the target chose the same token")
    chat.keyboard.press("ArrowLeft")
    expect(chat.locator(".node-figures")).to_contain_text("the tree grows from it")
    chat.get_by_role("button", name="list").click()
    expect(chat.locator(".list li")).to_have_count(len(steps[at]["nodes"]) + 1)


def test_stop_keeps_what_has_come_and_leaves_the_server(chat: Page, server: FakeServer) -> None:
    server.script.reply = Reply(TEXT * 20, pause=0.05)
    ask(chat)
    chat.locator("[data-kind]").first.wait_for()
    chat.get_by_role("button", name="Stop").click()
    expect(finished(chat)).to_contain_text("stopped")
    assert server.script.left.wait(5)
    expect(chat.locator("article.assistant")).to_contain_text("A ")


def test_going_back_while_the_reply_comes_and_following_again(
    chat: Page, server: FakeServer
) -> None:
    server.script.reply = Reply(TEXT * 20, pause=0.05)
    ask(chat)
    expect(chat.locator("output")).to_have_text(re.compile("step [4-9] of"))
    chat.get_by_label("Step", exact=True).fill("1")
    output = chat.locator("output")
    expect(output).to_have_text(re.compile(r"step 2 of \d\d"))
    chat.get_by_role("button", name="Follow").click()
    expect(output).to_have_text(re.compile(r"step (\d\d+) of \1"))
    chat.keyboard.press("Escape")
    expect(finished(chat)).to_contain_text("stopped")


def test_edit_and_regenerate(chat: Page, server: FakeServer) -> None:
    ask(chat, "one")
    finished(chat)
    ask(chat, "two")
    finished(chat).get_by_role("button", name="Regenerate").click()
    finished(chat)
    roles = [message["role"] for message in server.script.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    chat.get_by_role("button", name="Edit").first.click()
    chat.get_by_label("Edit your message").fill("three")
    chat.get_by_role("button", name="Send again").click()
    finished(chat)
    assert server.script.requests[-1]["messages"] == [{"role": "user", "content": "three"}]
    expect(chat.locator("article")).to_have_count(2)
    assert len(server.script.requests) == 4


def test_copy_takes_the_markdown(open_page: Callable[..., Page], server: FakeServer) -> None:
    page = open_page(server.address, permissions=["clipboard-read", "clipboard-write"])
    ask(page)
    finished(page).get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == TEXT


def test_trees_of_an_earlier_reply(chat: Page, server: FakeServer) -> None:
    ask(chat)
    finished(chat)
    server.script.reply = Reply("Short.")
    ask(chat)
    finished(chat)
    expect(chat.locator("output")).to_have_text(re.compile("of [12]$"))
    chat.get_by_role("button", name="Trees").first.click()
    expect(chat.locator("output")).to_have_text(
        f"step {len(example_steps(TEXT))} of {len(example_steps(TEXT))}"
    )


def test_a_new_conversation_in_mid_reply_stays_empty(chat: Page, server: FakeServer) -> None:
    server.script.reply = Reply(TEXT * 20, pause=0.05)
    ask(chat)
    chat.locator("[data-kind]").first.wait_for()
    chat.get_by_role("button", name="New").click()
    assert server.script.left.wait(5)
    expect(chat.locator("article")).to_have_count(0)
    expect(chat.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_settings_reach_the_server(chat: Page, server: FakeServer) -> None:
    chat.get_by_role("button", name="Settings").click()
    chat.get_by_label("Temperature").fill("0.3")
    chat.get_by_label("Most tokens").fill("40")
    chat.get_by_label("Seed").fill("7")
    chat.get_by_label("Speculation").uncheck()
    chat.get_by_role("button", name="Save").click()
    ask(chat)
    finished(chat)
    sent = server.script.requests[0]
    assert (sent["temperature"], sent["max_tokens"], sent["seed"]) == (0.3, 40, 7)
    assert sent["speculation"] == "off"


def test_the_key_is_asked_for_and_kept_in_the_session_only(chat: Page, server: FakeServer) -> None:
    server.script.key = "s3cret"
    ask(chat)
    alert = chat.get_by_role("alert")
    expect(alert).to_contain_text("wants an API key")
    alert.get_by_role("button", name="Settings").click()
    chat.get_by_label("API key").fill("s3cret")
    chat.get_by_role("button", name="Save").click()
    alert.get_by_role("button", name="Try again").click()
    finished(chat)
    assert len(server.script.requests) == 1
    assert "s3cret" in chat.evaluate("JSON.stringify(sessionStorage)")
    assert chat.evaluate("localStorage.length + document.cookie.length") == 0


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply("", status=429, retry_after="1"), "busy with other requests: 4 requests are"),
        (Reply("", status=503), "not ready: 4 requests are waiting"),
        (Reply("", status=500), "The server failed: 4 requests are waiting"),
        (Reply("", status=400), "refused the request: 4 requests are waiting"),
        (Reply(TEXT, broken_after=2), "broke in mid-reply"),
        (Reply(TEXT, error_after=2), "the target's pass failed"),
    ],
)
def test_errors_in_plain_words_and_another_try(
    chat: Page, server: FakeServer, reply: Reply, words: str
) -> None:
    server.script.reply = reply
    ask(chat)
    expect(chat.get_by_role("alert")).to_contain_text(words)
    again = chat.get_by_role("button", name="Try again")
    if reply.retry_after:
        expect(again).to_have_text("Try again in 1 s")
        expect(again).to_be_disabled()
    server.script.reply = Reply("All is well.")
    again.click()
    expect(finished(chat)).to_contain_text("All is well.")
    expect(chat.get_by_role("alert")).to_have_count(0)


def test_a_server_that_has_gone(chat: Page, server: FakeServer) -> None:
    server.shutdown()
    server.server_close()
    ask(chat)
    expect(chat.get_by_role("alert")).to_contain_text("does not answer")


def test_html_in_a_reply_is_text_and_nothing_is_loaded(
    chat: Page, server: FakeServer, console_errors: list[str]
) -> None:
    html = '<img src="https://example.com/x" onerror="document.title=1"> <b>no</b>'
    server.script.reply = Reply(
        f"{html}\n\n<script>document.title = 2</script>\n\n![a](https://example.com/y) "
        "[bad](javascript:alert(1)) [good](https://example.com/z)"
    )
    asked: list[str] = []
    chat.on("request", lambda request: asked.append(request.url))
    ask(chat)
    reply = finished(chat)
    expect(reply).to_contain_text("<b>no</b>")
    expect(reply).to_contain_text("<script>document.title = 2</script>")
    expect(reply.locator("img, b, script")).to_have_count(0)
    links = reply.locator("a[href]")
    expect(links).to_have_count(1)
    expect(links).to_have_attribute("rel", "noopener noreferrer")
    assert chat.title() == "dyspec-edge"
    assert all(url.startswith(server.address) for url in asked)
    assert console_errors == []


def test_a_screen_reader_hears_sentences_and_the_end(chat: Page, server: FakeServer) -> None:
    server.script.reply = Reply("First sentence. Second one. And")
    ask(chat)
    finished(chat)
    told = chat.get_by_role("log")
    expect(told.locator("p").last).to_have_text("Reply finished.")
    said = "First sentence. Second one. And Reply finished."
    assert " ".join(" ".join(told.locator("p").all_inner_texts()).split()) == said


def test_a_reply_without_trees(chat: Page, server: FakeServer, console_errors: list[str]) -> None:
    server.script.reply = Reply("No trees.", trees=False, thoughts="Hm.", finish_reason="length")
    ask(chat)
    reply = finished(chat)
    expect(reply).to_contain_text("cut at the limit of tokens")
    expect(reply.locator("details")).to_contain_text("Hm.")
    expect(chat.get_by_text("No steps came with this reply.")).to_be_visible()
    assert console_errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", [{"viewport": {"width": 1280, "height": 800}}, PHONE])
def test_people_with_disabilities_can_use_it(
    open_page: Callable[..., Page],
    server: FakeServer,
    scheme: str,
    window: dict[str, Any],
    console_errors: list[str],
) -> None:
    page = open_page(server.address, color_scheme=scheme, **window)
    assert serious_findings(page) == []
    ask(page)
    finished(page)
    assert serious_findings(page) == []
    page.get_by_role("button", name="Trees").first.click()
    page.get_by_text("Prices as a table").click()
    page.locator("[data-kind]").last.focus()
    assert serious_findings(page) == []
    page.get_by_role("button", name="list").click()
    page.get_by_role("button", name="Settings").click()
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert console_errors == []


@pytest.mark.parametrize("window", [{}, PHONE])
def test_a_trace_from_a_file(
    open_page: Callable[..., Page],
    tmp_path: Path,
    window: dict[str, Any],
    console_errors: list[str],
) -> None:
    steps = example_steps(TEXT)
    path = tmp_path / "trace.html"
    write_trace(
        {
            "prompt": "</script><b>What</b> is a token tree?",
            "model": "tiny",
            "settings": {"temperature": 0.7},
            "steps": steps,
            "timings": {"predicted_n": 64},
        },
        path,
    )
    page = open_page(path.as_uri(), **window)
    expect(page.get_by_text("</script><b>What</b> is")).to_be_visible()
    assert page.locator(".by-steps").text_content() == TEXT
    page.locator(".stretch").nth(3).click()
    expect(page.locator("output")).to_have_text(f"step 4 of {len(steps)}")
    expect(page.get_by_role("treeitem")).to_have_count(len(steps[3]["nodes"]) + 1)
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert console_errors == []
