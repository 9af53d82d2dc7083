"""The chat loop: a line is read, and either a command is run or a reply is streamed.

    LineSource -> Chat -> command
                     `--> turn.py: prompt, reply on the terminal -> Transcript

A turn that fails or is stopped before its first word leaves the transcript as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyspec_edge.cli import stats_view
from dyspec_edge.cli.answer import Answer, fitting_prompt, show_reply
from dyspec_edge.cli.background import Job, Progress, stream_reply
from dyspec_edge.cli.syntax import nearest
from dyspec_edge.cli.terminal import Terminal
from dyspec_edge.cli.transcript import Transcript
from dyspec_edge.errors import DyspecError

if TYPE_CHECKING:
    from dyspec_edge.cli.line_input import LineSource
    from dyspec_edge.decode.sampling import SamplingParams
    from dyspec_edge.engine import Chunk, Engine, Prompt, Stats

LEAVE_HINT = "Press Ctrl-C again or Ctrl-D to leave; /help lists the commands."
SEED_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What stays the same for the whole chat."""

    sampling: SamplingParams
    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    system: str | None = None
    models: Mapping[str, str] | None = None


class Chat:
    """One chat with one engine.

    `exit_code` is 0, 1 after a piped message that could not be answered, or 130.
    """

    def __init__(
        self, engine: Engine, terminal: Terminal, settings: ChatSettings, *, interactive: bool
    ) -> None:
        self.exit_code = 0
        self.transcript = Transcript(settings.system)
        self._engine = engine
        self._terminal = terminal
        self._settings = settings
        self._interactive = interactive
        self._num_replies = 0
        self._stats: Stats | None = None
        self._leaving = False
        self._warned = False  # Ctrl-C was pressed at an empty line; pressed again it leaves

    def run(self, lines: LineSource) -> int:
        """Talks until the lines end, and returns the exit code.

        Whatever ends it otherwise, an interactive conversation is written to a file first.
        """
        try:
            while not self._leaving:
                self._step(lines)
        except BaseException:
            if self._interactive and self.transcript.messages:
                path = self.transcript.rescue(self._saved_settings())
                with suppress(OSError):  # the terminal may be what is gone
                    self._terminal.notice(f"(the conversation is in {path})")
            raise
        return self.exit_code

    def _step(self, lines: LineSource) -> None:
        try:
            line = lines.read()
            self._warned = False
            self._handle_safely(line)
        except EOFError:
            self._leaving = True
        except KeyboardInterrupt:
            if self._warned or not self._interactive:
                self._leaving, self.exit_code = True, 130
            else:
                self._warned = True
                self._terminal.notice(LEAVE_HINT)
        except DyspecError as error:
            self._fail(error)

    def _handle_safely(self, line: str) -> None:
        """`handle`; a mistake of ours costs one turn, not the conversation."""
        try:
            self.handle(line)
        except DyspecError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self._fail(DyspecError(f"internal error: {what}; the conversation goes on"))

    def handle(self, line: str) -> None:
        """Runs a command, or answers a message."""
        command = re.fullmatch(r"/([a-z]+)(?:\s+(.*))?", line.rstrip(), re.DOTALL)
        if command and (command[1] in COMMANDS or "\n" not in line):
            self._run_command(command[1], (command[2] or "").strip())
        elif line.strip():
            self._turn(lambda: self.transcript.add("user", line))

    # Turns

    def _turn(self, change: Callable[[], object]) -> None:
        before = self.transcript.copy()
        try:
            change()
            answered = self._reply()
        except DyspecError as error:
            self.transcript = before
            self._fail(error)
        except BaseException:
            self.transcript = before
            raise
        else:
            if not answered:
                self.transcript = before

    def _reply(self) -> bool:
        """Streams one reply into the transcript; False if it ended before an answer."""
        prompt = fitting_prompt(
            self._engine, self.transcript, self._settings.max_tokens, self._terminal
        )
        answer = show_reply(self._stream(prompt), self._terminal, prompt.opens_thought)
        return self._finish(answer)

    def _stream(self, prompt: Prompt) -> Job[Progress | Chunk]:
        seed = self._settings.sampling.seed
        if seed is not None:
            seed = (seed + self._num_replies) % SEED_RANGE
        self._num_replies += 1
        return stream_reply(
            self._engine,
            prompt,
            sampling=replace(self._settings.sampling, seed=seed),
            max_tokens=self._settings.max_tokens,
            stop=self._settings.stop,
        )

    def _finish(self, answer: Answer) -> bool:
        last = answer.last
        reason = last.finish_reason if last is not None else None
        stopped = answer.interrupted or reason == "cancelled"
        if stopped and not self._interactive:
            raise KeyboardInterrupt
        if stopped and not answer.text.strip():
            self._terminal.notice("(stopped before the answer; the message was taken back)")
            return False
        if reason == "length" and answer.is_thought_only:
            self._terminal.notice(
                "(the whole reply was a thought; the message was taken back: "
                "allow more tokens with -n, or a larger context with -c)"
            )
            return False
        self.transcript.add("assistant", answer.text)
        if last is not None and last.stats is not None:
            self._stats = last.stats
            note = (
                "stopped · " if stopped else "cut off at the limit · " if reason == "length" else ""
            )
            self._terminal.notice(f"[{note}{stats_view.summary(last.stats)}]")
        return True

    def _fail(self, error: Exception) -> None:
        self._terminal.error(str(error))
        if not self._interactive:
            self.exit_code = 1

    # Commands

    def _run_command(self, name: str, rest: str) -> None:
        if name not in COMMANDS:
            near = nearest(name, COMMANDS)
            hint = f"did you mean /{near}?" if near else "/help lists them"
            raise DyspecError(f"unknown command /{name}; {hint}")
        try:
            COMMANDS[name].run(self, rest)
        except (OSError, ValueError) as error:
            raise DyspecError(f"/{name} {rest}: {error}") from error

    def help(self, _rest: str) -> None:
        """Lists the commands."""
        for name, command in COMMANDS.items():
            self._terminal.text(f"/{name} {command.argument}".ljust(15) + command.help)
        self._terminal.text(
            "Ctrl-C stops an answer, Ctrl-D leaves, Alt-Enter begins a new line.\n"
            "A space before the slash makes a message of it."
        )

    def reset(self, _rest: str) -> None:
        """Forgets all turns; the system prompt stays."""
        self.transcript = Transcript(self.transcript.system)
        self._terminal.notice("(conversation cleared)")

    def set_system(self, text: str) -> None:
        """Shows, sets or (with "") removes the system prompt."""
        if not text:
            self._terminal.text(self.transcript.system or "(no system prompt)")
            return
        self.transcript.system = None if text in ('""', "''") else text
        self._terminal.notice("(system prompt set)" if self.transcript.system else "(removed)")

    def show_stats(self, _rest: str) -> None:
        """Prints every figure of the last reply."""
        if self._stats is None:
            self._terminal.text("No reply yet.")
        else:
            self._terminal.out.print(stats_view.table(self._stats))

    def show_tree(self, _rest: str) -> None:
        """Shows the last token tree."""
        self._terminal.text(self._engine.render_tree() or "No token tree yet.")

    def save(self, name: str) -> None:
        """Writes the conversation to a file."""
        path = _path("/save", name)
        self.transcript.save(path, self._saved_settings())
        self._terminal.notice(f"(saved {len(self.transcript.messages)} messages to {path})")

    def load(self, name: str) -> None:
        """Replaces the conversation by a saved one; this chat's settings stay."""
        path = _path("/load", name)
        self.transcript, saved = Transcript.load(path)
        mine = self._saved_settings()
        differing = [key for key in mine if key in saved and saved[key] != mine[key]]
        note = f"; saved with other settings, not taken over: {', '.join(differing)}"
        self._terminal.notice(
            f"(loaded {len(self.transcript.messages)} messages from {path}"
            f"{note if differing else ''})"
        )

    def regenerate(self, _rest: str) -> None:
        """Answers the last message again, with a new seed."""
        if not self.transcript.copy().take_back_reply():
            raise DyspecError("there is no reply to generate again")
        self._turn(lambda: self.transcript.take_back_reply())

    def leave(self, _rest: str) -> None:
        """Ends the chat."""
        self._leaving = True

    def _saved_settings(self) -> dict[str, Any]:
        sampling = asdict(self._settings.sampling)
        sampling["logit_bias"] = [list(pair) for pair in sampling["logit_bias"]]
        return {
            **(self._settings.models or {}),
            "max_tokens": self._settings.max_tokens,
            **sampling,
        }


@dataclass(frozen=True, slots=True)
class _Command:
    run: Callable[[Chat, str], None]
    help: str
    argument: str = ""


COMMANDS: Mapping[str, _Command] = {
    "help": _Command(Chat.help, "this list"),
    "reset": _Command(Chat.reset, "begin a new conversation, the system prompt stays"),
    "system": _Command(Chat.set_system, 'show or set the system prompt ("" removes it)', "TEXT"),
    "stats": _Command(Chat.show_stats, "all figures of the last reply"),
    "tree": _Command(Chat.show_tree, "the last token tree, the accepted path marked"),
    "save": _Command(Chat.save, "write the conversation to a file", "FILE"),
    "load": _Command(Chat.load, "go on with a saved conversation", "FILE"),
    "regen": _Command(Chat.regenerate, "answer the last message again, with a new seed"),
    "quit": _Command(Chat.leave, "leave"),
}


def _path(command: str, name: str) -> Path:
    name = name.strip("\"'")
    if not name:
        raise DyspecError(f"{command} needs a file name, e.g. {command} talk.json")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # ~nobody
        raise DyspecError(f"{command} {name}: there is no such user; name another path") from error
