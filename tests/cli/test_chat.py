from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest
from click.testing import CliRunner, Result

from dyspec_edge.cli import main
from dyspec_edge.cli.answer import fitting_prompt
from dyspec_edge.cli.chat import COMMANDS, Chat, ChatSettings
from dyspec_edge.cli.terminal import Terminal
from dyspec_edge.cli.transcript import Transcript
from dyspec_edge.engine import Engine, EngineConfig, SamplingParams
from dyspec_edge.errors import OptionError
from dyspec_edge.llama import Model
from dyspec_edge.text.template import ChatTemplate
from dyspec_edge.text.utf8 import decode
from tests.conftest import TinyPair
from tests.engines import opened
from tests.fake_engine import FakeEngine

Talk = Callable[..., Result]
READY = r"\x1b\[\?2004h"  # the line editor asks for marked pastes: it listens


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    loaded: list[FakeEngine] = []

    def load(config: EngineConfig, *, on_progress: Any = None) -> FakeEngine:
        loaded.append(FakeEngine.load(config, on_progress=on_progress))
        return loaded[-1]

    monkeypatch.setattr(Engine, "load", load)
    return loaded


@pytest.fixture
def talk(engines: list[FakeEngine]) -> Talk:
    assert engines == []

    def run(*said: str, args: tuple[str, ...] = ()) -> Result:
        text = "".join(f"{line}\n" for line in said)
        return CliRunner().invoke(main.cli, ["chat", "-m", "x.gguf", *args], input=text)

    return run


def contents(prompt: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in prompt]


# Whole transcripts, from a pipe


def test_each_line_is_a_turn(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("say hello", "", "   ", "who are you?", args=("-sys", "be kind"))
    assert result.exit_code == 0
    assert result.stdout == "hello\nYou said: who are you?\n"
    assert result.stderr.count("tok/s") == 2
    assert engines[0].prompts[1] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "say hello"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "who are you?"},
    ]


def test_thoughts_are_marked_and_not_fed_back(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("think", "inside", "say so")
    assert result.stdout == (
        "<think>\nI wonder a bit.\n</think>\n\nIt is 42.\n"
        "<think>\nI wonder.\n</think>\n\nInside.\nso\n"
    )
    assert contents(engines[0].prompts[2]) == ["think", "It is 42.", "inside", "Inside.", "say so"]


def test_commands(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk(
        "/stats", "/tree", "say a", "/tree", "/system", "/system be brief", "/system", "say b",
        "/reset", "say c", '/system ""', "say d", "/quit", "say e",
    )  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout == (
        "No reply yet.\nNo token tree yet.\na\n*the\n`- *[cat]\n(no system prompt)\nbe brief\n"
        "b\nc\nd\n"
    )
    assert [contents(prompt) for prompt in engines[0].prompts] == [
        ["say a"],
        ["be brief", "say a", "a", "say b"],
        ["be brief", "say c"],
        ["say c", "c", "say d"],
    ]


def test_stats_and_help(talk: Talk) -> None:
    result = talk("say a", "/stats", "/help")
    for name in ("speedup 1.50x", "acceptance rate", "1: 1, 2: 1", "10.00 tok/s", "80% hidden"):
        assert name in result.stdout
    for name in COMMANDS:
        assert f"\n/{name} " in result.stdout


def test_unknown_command_suggests(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("/sats", "/xyzzy", "/etc/passwd", " /stats", "// a comment")
    assert result.exit_code == 1
    assert "unknown command /sats; did you mean /stats?" in result.stderr
    assert "unknown command /xyzzy; /help lists them" in result.stderr
    assert engines[0].prompts[-1][-1]["content"] == "// a comment"
    assert len(engines[0].prompts) == 3


def test_a_failed_turn_leaves_the_conversation(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("say a", "fail", "say b")
    assert result.exit_code == 1
    assert result.stdout == "a\nso far \nb\n"
    assert "error: llama.cpp could not evaluate" in result.stderr
    assert contents(engines[0].prompts[-1]) == ["say a", "a", "say b"]


def test_regen_takes_a_new_seed(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("/regen", "say a", "/regen", "say b", args=("--seed", "7"))
    assert "there is no reply to generate again" in result.stderr
    assert [call["sampling"].seed for call in engines[0].calls] == [7, 8, 9]
    assert contents(engines[0].prompts[1]) == ["say a"]
    assert contents(engines[0].prompts[2]) == ["say a", "a", "say b"]


def test_no_seed_leaves_it_to_the_engine(talk: Talk, engines: list[FakeEngine]) -> None:
    talk("say a", "/regen")
    assert [call["sampling"].seed for call in engines[0].calls] == [None, None]


def test_reply_cut_off_at_the_limit_says_so(talk: Talk) -> None:
    result = talk("say a b c", args=("-n", "2"))
    assert result.stdout == "a b\n"
    assert "[cut off at the limit · 15.0 tok/s" in result.stderr


def test_empty_reply_is_kept(talk: Talk, engines: list[FakeEngine]) -> None:
    talk("nothing", "say a")
    assert contents(engines[0].prompts[-1]) == ["nothing", "", "say a"]


def test_long_line_and_emoji(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("👍", "x" * 100_000, args=("-c", "100"))
    assert result.exit_code == 0
    assert len(engines[0].prompts[-1][-1]["content"]) == 100_000


def test_invalid_utf8_in_one_line(engines: list[FakeEngine]) -> None:
    result = CliRunner().invoke(main.cli, ["chat", "-m", "x"], input=b"say a\nab\xff\nsay b\n")
    assert result.exit_code == 1
    assert "error: line 2 of stdin is not UTF-8: byte 0xff at offset 2" in result.stderr
    assert result.stdout == "a\nb\n"
    assert len(engines[0].prompts) == 2


def test_model_text_cannot_control_a_terminal(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.sendline("escape")
    child.expect_exact("a␛[31mb")
    child.sendeof()


def test_a_reply_that_is_only_a_thought_leaves_no_empty_answer(
    talk: Talk, engines: list[FakeEngine]
) -> None:
    result = talk("think", "say b", args=("-n", "2"))
    assert "(the whole reply was a thought; the message was taken back" in result.stderr
    assert contents(engines[0].prompts[1]) == ["say b"]


def test_a_home_that_does_not_exist_costs_nothing(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("say a", "/save ~nouser/x.json", "/load ~nouser/x.json", "say b")
    assert result.exit_code == 1
    assert result.stderr.count("there is no such user; name another path") == 2
    assert contents(engines[0].prompts[1]) == ["say a", "a", "say b"]


def test_a_mistake_of_ours_costs_no_conversation(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("say a", "bug", "say b")
    assert result.exit_code == 1
    assert "ZeroDivisionError: a mistake; the conversation goes on" in result.stderr
    assert contents(engines[0].prompts[2]) == ["say a", "a", "say b"]


def test_a_terminal_that_is_gone_leaves_the_conversation_in_a_file(
    engines: list[FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lines:
        said = iter(["say a", "say b"])

        def read(self) -> str:
            return next(self.said)

    monkeypatch.chdir(tmp_path)
    chat = Chat(
        Engine.load(EngineConfig(Path("x"))),
        terminal := Terminal(),
        ChatSettings(SamplingParams()),
        interactive=True,
    )
    written: list[str] = []

    def notice(text: str) -> None:
        written.append(text)
        if len(written) > 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(terminal, "notice", notice)
    monkeypatch.setattr(terminal, "error", notice)
    with pytest.raises(OSError, match="Input/output error"):
        chat.run(Lines())
    (path,) = tmp_path.glob("dyspec-edge-chat-*.json")
    assert contents(Transcript.load(path)[0].messages) == ["say a", "a"]  # type: ignore[arg-type]
    assert engines[0].calls


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_conversation_in_a_file(tmp_path: Path, number: int) -> None:
    child = start(tmp_path)
    child.sendline("say hello")
    child.expect_exact("tok/s")
    child.expect(READY)
    child.kill(number)
    child.expect_exact("the conversation is in")
    child.expect(pexpect.EOF)
    (path,) = tmp_path.glob("dyspec-edge-chat-*.json")
    assert contents(Transcript.load(path)[0].messages) == ["say hello", "hello"]  # type: ignore[arg-type]


# Context overflow


def test_a_long_conversation_is_shortened_in_a_few_renderings(
    engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(EngineConfig(Path("x")))
    prepared: list[int] = []
    prepare = engines[0].prepare

    def counted(messages: Any, **options: Any) -> Any:
        prepared.append(len(messages))
        return prepare(messages, **options)

    monkeypatch.setattr(engines[0], "prepare", counted)
    talk = Transcript()
    for number in range(1000):
        talk.add("user", f"q{number}")
        talk.add("assistant", f"a{number}")
    talk.add("user", "last")
    prompt = fitting_prompt(engine, talk, 4, Terminal())
    assert len(prompt.tokens) == 30  # as many turns as fit into half of the context of 64
    assert len(talk.window()) == 15
    assert len(prepared) <= 12


def test_oldest_turns_are_dropped_whole(talk: Talk, engines: list[FakeEngine]) -> None:
    said = [f"say {number} b c d e" for number in range(30)]
    result = talk(*said, args=("-sys", "be kind", "-c", "60"))
    assert result.exit_code == 0
    assert "error" not in result.stderr
    assert "(context full: the 2 oldest turns are no longer sent to the model)" in result.stderr
    for prompt in engines[0].prompts:
        assert prompt[0] == {"role": "system", "content": "be kind"}
        assert prompt[1]["role"] == "user"
        assert len(engines[0].prepare(prompt).tokens) <= 45
    assert contents(engines[0].prompts[-1])[-1] == said[-1]
    assert contents(engines[0].prompts[-1])[-3] == said[-2]
    # Most turns append to what the model has read.
    assert result.stderr.count("no longer sent") < 15


def test_a_message_that_does_not_fit_alone(talk: Talk, engines: list[FakeEngine]) -> None:
    result = talk("say a", "say " + "b " * 80, "say c")
    assert result.exit_code == 1
    assert "the prompt has 82 tokens but the context holds 64" in result.stderr
    assert contents(engines[0].prompts[-1]) == ["say a", "a", "say c"]


def test_dropped_turns_are_still_saved(talk: Talk, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    talk(*(f"say {n} b c d e" for n in range(20)), f"/save {file}", args=("-c", "60"))
    assert len(json.loads(file.read_text())["messages"]) == 40


# Saving and loading


def test_save_and_load(talk: Talk, engines: list[FakeEngine], tmp_path: Path) -> None:
    file = tmp_path / "my talk.json"
    talk("say één", f"/save {file}", args=("-sys", "be kind", "--temp", "0"))
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["settings"]["temperature"] == 0
    assert document["settings"]["model"] == "x.gguf"
    result = talk("say x", f"/load {file}", "say c")
    assert "loaded 2 messages" in result.stderr
    assert "not taken over: temperature" in result.stderr
    assert contents(engines[-1].prompts[-1]) == ["be kind", "say één", "één", "say c"]
    assert [path.name for path in tmp_path.iterdir()] == ["my talk.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "is not a saved conversation"),
        ('{"format": "x"}', "is not a saved conversation"),
        ('{"format": "dyspec-edge conversation", "version": 9}', "format version 9"),
        ('{"format": "dyspec-edge conversation", "version": 1}', "no list of messages"),
        ("[1]", "message 1 is not an object"),
        ('[{"role": "robot", "content": "x"}]', "message 1 has the role 'robot'"),
        ('[{"role": "user", "content": 3}]', "message 1 has no text"),
        ('[{"role": "user", "content": "\\ud800"}]', "half of a surrogate pair"),
        ('[{"role":"user","content":"x"},{"role":"system","content":"x"}]', "message 2 has the"),
    ],
)
def test_a_damaged_file_keeps_the_conversation(
    talk: Talk, engines: list[FakeEngine], tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "talk.json"
    if text.startswith("[") and text[1:2] in ("1", "{"):
        text = f'{{"format": "dyspec-edge conversation", "version": 1, "messages": {text}}}'
    file.write_text(text)
    result = talk("say a", f"/load {file}", "say b")
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert contents(engines[0].prompts[-1]) == ["say a", "a", "say b"]


def test_save_and_load_errors(talk: Talk, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("precious")
    result = talk(
        "/save", "/load", f"/load {tmp_path}/none.json", f"/load {tmp_path}", f"/save {notes}",
        f"/save {tmp_path}/no/where.json", f"/save {tmp_path}/{'x' * 300}",
    )  # fmt: skip
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    expected = ["needs a file name", "needs a file name", "no such file", "is not a file",
                "will not overwrite", "no such file", "too long"]  # fmt: skip
    assert [part in error.lower() for part, error in zip(expected, errors, strict=True)] == [
        True
    ] * 7
    assert notes.read_text() == "precious"


def test_transcript_pieces(tmp_path: Path) -> None:
    talk = Transcript("sys")
    for number in range(3):
        talk.add("user", f"q{number}")
        talk.add("assistant", f"a{number}")
    assert talk.later_turns() == [2, 4]
    talk.num_dropped = 2
    assert contents(talk.window()) == ["sys", "q1", "a1", "q2", "a2"]  # type: ignore[arg-type]
    talk.num_dropped = 4
    assert talk.later_turns() == []
    assert talk.take_back_reply()
    assert not talk.take_back_reply()
    talk.save(tmp_path / "a.json", {})
    talk.save(tmp_path / "a.json", {})
    loaded, settings = Transcript.load(tmp_path / "a.json")
    assert (len(loaded.messages), loaded.system, settings) == (5, "sys", {})
    with pytest.raises(OptionError, match="is not a file"):
        Transcript.load(tmp_path)
    assert decode("é".encode(), "x") == "é"


# On a terminal


def start(tmp_path: Path, *args: str, **environment: str) -> Any:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "tests.fake_engine", "chat", "-m", "x.gguf", *args],
        env={
            **os.environ,
            "TERM": "xterm-256color",
            "DYSPEC_EDGE_CACHE": str(tmp_path / "cache"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **environment,
        },
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=30,
        dimensions=(40, 200),
    )
    child.delaybeforesend = None
    if "--policy" not in args:
        child.expect_exact("Ctrl-D leaves")
        child.expect(READY)
    return child


def finished(child: Any) -> int:
    child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus)


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.sendline("slow")
    child.expect_exact("w20 ")
    since = time.monotonic()
    child.sendintr()
    child.expect_exact("[stopped · ")
    child.expect(READY)
    assert time.monotonic() - since < 1.0
    child.sendline("say second turn")
    child.expect("second turn\r?\n")
    child.expect_exact("tok/s")
    child.sendline(f"/save {tmp_path}/talk.json")
    child.expect_exact("saved 4 messages")
    child.sendeof()
    assert finished(child) == 0
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert messages[1]["content"].startswith("w0 w1 w2")


def test_ctrl_c_while_the_prompt_is_read_takes_the_message_back(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.sendline("prefill")
    child.expect_exact("reading the prompt")
    since = time.monotonic()
    child.sendintr()
    child.expect_exact("the message was taken back")
    assert time.monotonic() - since < 1.0
    child.expect(READY)
    child.sendline("say fine")
    child.expect("fine\r?\n")
    child.sendline(f"/save {tmp_path}/talk.json")
    child.expect_exact("saved 2 messages")
    child.sendline("/quit")
    assert finished(child) == 0


def test_ctrl_c_inside_a_thought_takes_the_message_back(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.sendline("only thinking")
    child.expect_exact("w10")
    child.sendintr()
    child.expect_exact("the message was taken back")
    child.sendeof()
    assert finished(child) == 0


def test_ctrl_c_at_an_empty_line_needs_a_second_press(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.send("unfinished")
    child.expect_exact("unfinished")
    child.sendintr()  # clears the line
    child.sendintr()
    child.expect_exact("Press Ctrl-C again")
    child.expect(READY)
    child.sendline("say still here")
    child.expect("still here\r?\n")
    child.expect_exact("tok/s")
    child.expect(READY)
    child.sendintr()
    child.expect_exact("Press Ctrl-C again")
    child.expect(READY)
    child.sendintr()
    assert finished(child) == 130


def test_a_second_ctrl_c_leaves_an_engine_that_does_not_stop(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.sendline("deaf")
    child.expect_exact("w5 ")
    child.sendintr()
    time.sleep(1.3)
    child.sendintr()
    child.expect_exact("Press Ctrl-C again")
    child.expect(READY)
    child.sendintr()
    assert finished(child) == 130


def test_ctrl_c_while_loading_leaves(tmp_path: Path) -> None:
    child = start(tmp_path, "--policy", "slow-load")
    child.expect_exact("loading")  # the bar
    since = time.monotonic()
    child.sendintr()
    assert finished(child) == 130
    assert time.monotonic() - since < 1.0


def test_keys_typed_during_an_answer_wait_for_the_prompt(tmp_path: Path) -> None:
    child = start(tmp_path, "-n", "50")
    child.send("slow\r")
    child.expect_exact("w5 ")
    child.send("say typed ahead\r\x04")
    child.expect_exact("[cut off")
    child.expect("typed ahead\r?\n")
    child.expect_exact("tok/s")
    assert finished(child) == 0


def test_keys_stay_unseen_after_ctrl_z_and_fg(tmp_path: Path) -> None:
    child = start(tmp_path, "-n", "150")
    child.send("slow\r")
    child.expect_exact("w5 ")
    child.kill(signal.SIGSTOP)
    modes = termios.tcgetattr(child.child_fd)
    modes[3] |= termios.ICANON | termios.ECHO  # as a shell sets them while it has the terminal
    termios.tcsetattr(child.child_fd, termios.TCSANOW, modes)
    child.kill(signal.SIGCONT)
    child.expect_exact("w15 ")
    assert not termios.tcgetattr(child.child_fd)[3] & (termios.ICANON | termios.ECHO)
    child.expect_exact("[cut off")
    child.sendline("/quit")
    assert finished(child) == 0


def test_killed_the_terminal_is_given_back(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.sendline("slow")
    child.expect_exact("w5 ")
    assert not child.getecho()
    child.kill(signal.SIGTERM)
    assert finished(child) == 143


def test_pasted_lines_are_one_message(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.send("\x1b[200~say first\nsecond line\n\x1b[201~")
    child.send("\r")
    child.expect_exact("tok/s")
    child.send("say one\x1b\rtwo\r")  # Alt-Enter
    child.expect_exact("tok/s")
    child.sendline(f"/save {tmp_path}/talk.json")
    child.expect_exact("saved 4 messages")
    child.sendeof()
    assert finished(child) == 0
    messages = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert messages[0]["content"] == "say first\nsecond line\n"
    assert messages[2]["content"] == "say one\ntwo"


def test_history_is_kept_in_a_private_file(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.sendline("say remember me")
    child.expect_exact("tok/s")
    child.sendeof()
    assert finished(child) == 0
    history = tmp_path / "cache" / "chat_history"
    assert "say remember me" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    child = start(tmp_path)
    child.send("\x1b[A\r")
    child.expect("remember me\r?\n")
    child.sendeof()
    assert finished(child) == 0


def test_unwritable_cache_directory_costs_only_the_history(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    child = start(tmp_path)
    child.sendline("say fine")
    child.expect_exact("tok/s")
    child.sendeof()
    assert finished(child) == 0


def test_thoughts_are_dim_on_a_terminal(tmp_path: Path) -> None:
    child = start(tmp_path)
    child.sendline("think")
    child.expect_exact("\x1b[2mI wonder")
    child.expect_exact("It is 42.")
    child.sendeof()
    assert finished(child) == 0


def test_no_color_is_respected(tmp_path: Path) -> None:
    child = start(tmp_path, NO_COLOR="1")
    shown = ""
    for said in ("think", "fail", "/stats"):
        child.sendline(said)
        child.expect("tok/s|error: .*\n")
        shown += child.before + child.after
    child.sendeof()
    child.expect(pexpect.EOF)
    shown += child.before
    styles = set(re.findall(r"\x1b\[([0-9;]*)m", shown)) - {"", "0"}
    assert styles == set()
    assert "<think>" in shown


# With a model


def test_a_turn_renders_once_and_tokenizes_once(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    render, tokenize = ChatTemplate.render, Model.tokenize

    def counted_render(self: ChatTemplate, *args: Any, **options: Any) -> str:
        calls.append("render")
        return render(self, *args, **options)

    def counted_tokenize(self: Model, *args: Any, **options: Any) -> list[int]:
        calls.append("tokenize")
        return tokenize(self, *args, **options)

    with opened(*tiny_pair) as engine:
        settings = ChatSettings(SamplingParams(seed=1), max_tokens=8)
        chat = Chat(engine, Terminal(), settings, interactive=False)
        monkeypatch.setattr(ChatTemplate, "render", counted_render)
        monkeypatch.setattr(Model, "tokenize", counted_tokenize)
        for line in ("the tree is", "and now?", "/regen"):
            calls.clear()
            chat.handle(line)
            assert calls == ["render", "tokenize"]
    assert len(chat.transcript.messages) == 4
