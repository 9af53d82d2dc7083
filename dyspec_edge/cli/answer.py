"""One turn of a chat: the prompt that fits into the context, and the reply as it is written.

Transcript -> Prompt -> Job -> Chunk, Chunk, ... -> ThoughtSplitter -> ReplyWriter
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dyspec_edge.cli.background import Job, Progress, with_bar
from dyspec_edge.cli.terminal import Bar, ReplyWriter, Terminal
from dyspec_edge.cli.transcript import Transcript
from dyspec_edge.errors import ContextOverflow
from dyspec_edge.text.thoughts import Kind, ThoughtSplitter

if TYPE_CHECKING:
    from dyspec_edge.engine import Chunk, Engine, Prompt

REPLY_RESERVE = 256
"""Tokens of the context that a prompt leaves free for the reply; a quarter of a small context."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply that was shown.

    Attributes:
        text: without the thought before it, which the model does not get to see again.
        last: the last chunk, with the figures; None if nothing came.
        interrupted: Ctrl-C was pressed.
        is_thought_only: there was a thought, but no answer after it.
    """

    text: str
    last: Chunk | None
    interrupted: bool
    is_thought_only: bool = False


def fitting_prompt(
    engine: Engine, transcript: Transcript, max_tokens: int, terminal: Terminal
) -> Prompt:
    """The prompt for the transcript, without its oldest turns where they leave no room to reply.

    Args:
        max_tokens: of the reply; -1 for no limit.

    Raises:
        ContextOverflow: the last message alone fills the context.
        OptionError: the chat template refuses the messages.
    """
    room = engine.num_ctx
    limit = max_tokens if max_tokens > 0 else REPLY_RESERVE
    prompt = engine.prepare(transcript.window())
    if len(prompt.tokens) <= room - min(limit, room // 4):
        return prompt
    # Turns are dropped until the context is half empty: dropping one at a time would change the
    # beginning of the prompt, so that all of it is read anew, at every message.
    first = transcript.num_dropped
    prompt = _shortened(engine, transcript, room // 2)
    if len(prompt.tokens) >= room:
        raise ContextOverflow(len(prompt.tokens), room)
    dropped = transcript.messages[first : transcript.num_dropped]
    if turns := sum(message["role"] == "user" for message in dropped):
        what = "oldest turn is" if turns == 1 else f"{turns} oldest turns are"
        terminal.notice(f"(context full: the {what} no longer sent to the model)")
    return prompt


def _shortened(engine: Engine, transcript: Transcript, most: int) -> Prompt:
    """Drop as few turns as leave at most so many tokens, or all but the last turn.

    A turn more dropped is a shorter prompt, so halving finds the number: a conversation of a
    thousand turns is rendered ten times.
    """
    starts = transcript.later_turns() or [transcript.num_dropped]
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        transcript.num_dropped = starts[middle]
        if len(engine.prepare(transcript.window()).tokens) <= most:
            high = middle
        else:
            low = middle + 1
    transcript.num_dropped = starts[low]
    return engine.prepare(transcript.window())


def show_reply(job: Job[Progress | Chunk], terminal: Terminal, opens_thought: bool) -> Answer:
    """Run a job that generates a reply, and write the reply to the terminal as it comes.

    Args:
        opens_thought: the prompt leaves the model inside a thought.
    """
    splitter = ThoughtSplitter(inside=opens_thought)
    writer = ReplyWriter(terminal)
    answer: list[str] = []
    has_thought = False
    last: Chunk | None = None

    def show(parts: list[tuple[Kind, str]]) -> None:
        nonlocal has_thought
        for kind, text in parts:
            writer.write(kind, text)
            if kind == "answer":
                answer.append(text)
            else:
                has_thought = True

    try:
        with Bar(terminal) as bar, job:
            for chunk in with_bar(job, bar):
                bar.close()
                show(splitter.feed(chunk.text))
                last = chunk
        show(splitter.flush())
    finally:
        writer.end()
    text = "".join(answer)
    return Answer(text, last, job.interrupted, has_thought and not text.strip())
