"""The conversation loop: a line is read, a command obeyed or a reply streamed.

    LineSource -> Chat -> generate() -> ThoughtSplitter -> ReplyWriter
                    `-> Conversation (answers only; thoughts are not fed back)

A turn that fails or is stopped before its first word leaves the conversation as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyspec_edge.cli import stats_view
from dyspec_edge.cli import transcript as storage
from dyspec_edge.cli.background import generate, shown
from dyspec_edge.cli.options import nearest
from dyspec_edge.cli.terminal import Bar, ReplyWriter, Terminal
from dyspec_edge.cli.transcript import Conversation
from dyspec_edge.errors import ContextOverflow, DyspecError
from dyspec_edge.text.thoughts import ThoughtSplitter

if TYPE_CHECKING:
    from dyspec_edge.cli.line_input import LineSource
    from dyspec_edge.decode.sampling import SamplingParams
    from dyspec_edge.engine import Chunk, Engine, Prompt, Stats

REPLY_RESERVE = 256  # tokens kept free for a reply, or a quarter of a small context
LEAVE_HINT = "Press Ctrl-C again or Ctrl-D to leave; /help lists the commands."
SEED_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What stays the same for the whole chat."""

    sampling: SamplingParams
    max_tokens: int = -1
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
        self.conversation = Conversation(settings.system)
        self._engine = engine
        self._terminal = terminal
        self._settings = settings
        self._interactive = interactive
        self._num_replies = 0
        self._stats: Stats | None = None
        self._leaving = False
        self._warned = False  # Ctrl-C at an empty line: a second one leaves

    def run(self, lines: LineSource) -> int:
        """Talks until the lines end, and returns the exit code."""
        while not self._leaving:
            self._step(lines)
        return self.exit_code

    def _step(self, lines: LineSource) -> None:
        try:
            line = lines.read()
            self._warned = False
            self.handle(line)
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

    def handle(self, line: str) -> None:
        """Obeys a command, or answers a message."""
        command = re.fullmatch(r"/([a-z]+)(?:\s+(.*))?", line.rstrip(), re.DOTALL)
        if command and (command[1] in COMMANDS or "\n" not in line):
            self._obey(command[1], (command[2] or "").strip())
        elif line.strip():
            self._turn(lambda: self.conversation.add("user", line))

    # Turns

    def _turn(self, change: Callable[[], object]) -> None:
        before = self.conversation.copy()
        try:
            change()
            answered = self._reply(self._fitting_prompt())
        except DyspecError as error:
            self.conversation = before
            self._fail(error)
        except BaseException:
            self.conversation = before
            raise
        else:
            if not answered:
                self.conversation = before
                self._terminal.notice("(stopped before the answer; the message was taken back)")

    def _fitting_prompt(self) -> Prompt:
        """The prompt of the turn, without the oldest turns where they leave no room to reply."""
        room = self._engine.num_ctx
        limit = self._settings.max_tokens if self._settings.max_tokens > 0 else REPLY_RESERVE
        prompt = self._engine.prepare(self.conversation.window())
        if len(prompt.tokens) <= room - min(limit, room // 4):
            return prompt
        # A full context is emptied to half: dropping one turn at a time would change the
        # beginning, and so read everything anew, at each message.
        first = self.conversation.num_dropped
        while len(prompt.tokens) > room // 2 and self.conversation.drop_oldest_turn():
            prompt = self._engine.prepare(self.conversation.window())
        if len(prompt.tokens) >= room:
            raise ContextOverflow(len(prompt.tokens), room)
        dropped = self.conversation.messages[first : self.conversation.num_dropped]
        if turns := sum(message["role"] == "user" for message in dropped):
            what = "oldest turn is" if turns == 1 else f"{turns} oldest turns are"
            self._terminal.notice(f"(context full: the {what} no longer sent to the model)")
        return prompt

    def _reply(self, prompt: Prompt) -> bool:
        """Streams one reply into the conversation; False if it was stopped before an answer."""
        splitter = ThoughtSplitter(inside=prompt.opens_thought)
        writer = ReplyWriter(self._terminal)
        answer: list[str] = []
        last: Chunk | None = None

        def show(parts: list[tuple[Any, str]]) -> None:
            for kind, text in parts:
                writer.write(kind, text)
                if kind == "answer":
                    answer.append(text)

        try:
            with Bar(self._terminal) as bar, self._generate(prompt) as work:
                for chunk in shown(work, bar):
                    bar.close()
                    show(splitter.feed(chunk.text))
                    last = chunk
            show(splitter.flush())
        finally:
            writer.end()
        return self._finish("".join(answer), last, stopped=work.interrupted)

    def _generate(self, prompt: Prompt) -> Any:
        seed = self._settings.sampling.seed
        if seed is not None:
            seed = (seed + self._num_replies) % SEED_RANGE
        self._num_replies += 1
        return generate(
            self._engine,
            prompt,
            sampling=replace(self._settings.sampling, seed=seed),
            max_tokens=self._settings.max_tokens,
        )

    def _finish(self, answer: str, last: Chunk | None, *, stopped: bool) -> bool:
        reason = last.finish_reason if last is not None else None
        stopped = stopped or reason == "cancelled"
        if stopped and not self._interactive:
            raise KeyboardInterrupt
        if stopped and not answer.strip():
            return False
        self.conversation.add("assistant", answer)
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

    def _obey(self, name: str, rest: str) -> None:
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
        self.conversation = Conversation(self.conversation.system)
        self._terminal.notice("(conversation cleared)")

    def set_system(self, text: str) -> None:
        """Shows, sets or (with "") removes the system prompt."""
        if not text:
            self._terminal.text(self.conversation.system or "(no system prompt)")
            return
        self.conversation.system = None if text in ('""', "''") else text
        self._terminal.notice("(system prompt set)" if self.conversation.system else "(removed)")

    def show_stats(self, _rest: str) -> None:
        """Prints every figure of the last reply."""
        if self._stats is None:
            self._terminal.text("No reply yet.")
        else:
            self._terminal.out.print(stats_view.table(self._stats))

    def show_tree(self, _rest: str) -> None:
        """Draws the last token tree."""
        self._terminal.text(self._engine.render_tree() or "No token tree yet.")

    def save(self, name: str) -> None:
        """Writes the conversation to a file."""
        path = _path("/save", name)
        storage.save(path, self.conversation, self._saved_settings())
        self._terminal.notice(f"(saved {len(self.conversation.messages)} messages to {path})")

    def load(self, name: str) -> None:
        """Replaces the conversation by a saved one; this chat's settings stay."""
        path = _path("/load", name)
        self.conversation, saved = storage.load(path)
        mine = self._saved_settings()
        differing = [key for key in mine if key in saved and saved[key] != mine[key]]
        note = f"; saved with other settings, not taken over: {', '.join(differing)}"
        self._terminal.notice(
            f"(loaded {len(self.conversation.messages)} messages from {path}"
            f"{note if differing else ''})"
        )

    def regenerate(self, _rest: str) -> None:
        """Answers the last message again, with a new seed."""
        if not self.conversation.copy().take_back_reply():
            raise DyspecError("there is no reply to generate again")
        self._turn(lambda: self.conversation.take_back_reply())

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
    return Path(name).expanduser()
