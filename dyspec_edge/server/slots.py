"""Conversations that stay in the caches between requests, and which of them a request goes on with.

slot 0   system, question, answer      <- the same chat's next turn finds its prefix here
slot 1   a title call                  <- and did not lose it to this one
slot 2   (empty)

A request takes the slot where it costs least: tokens of the prompt to read, and tokens of another
text that would have to be read again, should that go on; the longer ago and the more texts ago it
was used, the less likely that is.  What it loses there is kept in memory, as far as there is room,
and goes into a slot again for a prompt that begins with more of it than with what any slot holds.
Only the scheduler's thread takes slots and gives them back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dyspec_edge.decode.cache import common_prefix
from dyspec_edge.decode.loop import Step
from dyspec_edge.engine import Chunk, Message, Prompt
from dyspec_edge.engine.kept import LEAST_TOKENS, KeptSessions
from dyspec_edge.engine.prompt import Dialogue, PromptBuilder
from dyspec_edge.engine.session import Session
from dyspec_edge.errors import OptionError
from dyspec_edge.load.loading import Loaded
from dyspec_edge.server.request import Request
from dyspec_edge.server.steps import StepWriter
from dyspec_edge.text.tools import Tool, ToolUse

LIFE = 900.0
"""Seconds after which it has become e times less likely that a resting text will go on."""


BEGINNING = 256
"""Tokens' worth of waiting that it costs at least to begin a lost text again."""


class Slot:
    """One conversation and what it holds.

    Attributes:
        number: from 0 on.
        conversation: the tokens in the caches.
        is_taken: a reply is under way.
        rested_since: when the last reply ended, by `time.monotonic`.
        session: of the conversation.
    """

    def __init__(self, number: int, loaded: Loaded, prompts: PromptBuilder) -> None:
        self.number = number
        self.conversation = loaded.conversation()
        self.is_taken = False
        self.rested_since = 0.0
        self._loaded = loaded
        self._own = self.conversation.policy, self.conversation.verifier
        self.session = Session(
            self.conversation,
            loaded.models.target,
            prompts,
            num_ctx=loaded.models.num_ctx,
            plain_seconds=loaded.plain_seconds,
        )

    @property
    def num_cached(self) -> int:
        """Tokens of the target's cache."""
        return len(self.conversation.target.tokens)

    @property
    def policy_name(self) -> str:
        """Of the reply under way or the last one."""
        return self.conversation.policy.name

    @property
    def last_step(self) -> Step | None:
        """The latest step of the reply under way."""
        return self.session.last_step

    def prompt(self, request: Request) -> Prompt:
        """The request's prompt as it reads after what was said here."""
        if isinstance(request.prompt, Prompt):
            return request.prompt
        return self.session.prepare(
            request.prompt,
            raw=False,
            template_kwargs=request.template_kwargs,
            tools=request.tools,
        )

    def num_shared(self, prompt: Prompt) -> int:
        """Tokens of the prompt that need not be read here."""
        return common_prefix(self.conversation.target.tokens, prompt.tokens)

    def cost(self, prompt: Prompt, age: int) -> float:
        """Tokens to read if this slot takes the prompt, now and perhaps later.

        Args:
            age: free slots that were used later.
        """
        shared = self.num_shared(prompt)
        lost = self.num_cached - shared
        rest = time.monotonic() - self.rested_since
        goes_on = 0.5**age * math.exp(-rest / LIFE)
        return len(prompt.tokens) - shared + (lost + BEGINNING) * goes_on * (lost > 0)

    def reply(
        self, request: Request, prompt: Prompt, while_reading: Callable[[], None]
    ) -> Generator[Chunk]:
        """Begin the reply; errors as of `Engine.stream`, from the first chunk on.

        Args:
            while_reading: called between two parts of the prompt; other slots may go on then.

        Raises:
            OptionError: a policy that does not fit what was loaded.
        """
        policy, verifier = self._own
        if request.policy is not None or request.verify not in (None, "auto"):
            verify = request.verify if request.verify not in (None, "auto") else verifier.name
            policy, verifier = self._loaded.policy(request.policy, verify or "match")
        self.conversation.use(policy, verifier)

        def let_others(_done: int, _total: int) -> None:
            while_reading()
            self.conversation.take_turn()

        return self.session.reply(
            prompt,
            request.sampling,
            max_tokens=request.max_tokens,
            stop=request.stop,
            raw=False,
            json_schema=request.json_schema,
            logprobs=request.logprobs,
            on_prefill=let_others,
        )

    def step_writer(self) -> StepWriter:
        """What writes the steps of the reply that begins."""
        model = self._loaded.models.target
        return StepWriter(self.conversation, lambda token: model.piece(token, special=True))


@dataclass(frozen=True, slots=True)
class Taken:
    """A slot for a request, and the prompt that it reads there."""

    slot: Slot
    prompt: Prompt


class Slots:
    """All conversations over what is loaded.

    Args:
        loaded: with room for as many as its configuration says; closed by `close`.
        cache_ram: bytes for conversations that have lost their slot.

    Attributes:
        kept: those conversations.
        all: by number.
        num_ctx: usable tokens of each.
    """

    def __init__(self, loaded: Loaded, cache_ram: int = 0) -> None:
        self.loaded = loaded
        self.kept = KeptSessions(cache_ram)
        self.num_ctx = loaded.models.num_ctx
        config = loaded.models.config
        self._prompts = PromptBuilder(
            loaded.models.target,
            config.chat_template,
            config.template_kwargs,
            control_texts=loaded.models.reports[0].control_texts(),
            goes_on=True,
        )
        self.notices = (*loaded.notices, *self._prompts.notes)
        count = config.num_conversations
        self.all = tuple(Slot(number, loaded, self._prompts) for number in range(count))

    @property
    def has_free(self) -> bool:
        """Whether a slot can be taken."""
        return any(not slot.is_taken for slot in self.all)

    def tool_use(
        self, tools: Sequence[Tool], choice: Any = "auto", *, parallel: bool = True
    ) -> ToolUse | None:
        """OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`, checked; from any thread.

        Returns:
            None where there are no tools.

        Raises:
            OptionError: as `ToolUse`, or a call is required and there is nothing to call.
        """
        if tools:
            return self._prompts.tool_use(tools, choice, parallel=parallel)
        if choice not in ("auto", "none"):
            raise OptionError(
                f"tool_choice is {choice!r:.80}, and no function is offered; give tools, or leave "
                "tool_choice out"
            )
        return None

    def prepare(
        self,
        messages: Sequence[Message],
        template_kwargs: Mapping[str, Any] | None = None,
        tools: ToolUse | None = None,
    ) -> Prompt:
        """The prompt of messages for a slot that holds nothing; from any thread.

        Raises:
            OptionError: messages that the chat template refuses.
        """
        return self._prompts.prepare(
            messages, raw=False, after=Dialogue(), variables=template_kwargs, tools=tools
        )

    def prepare_raw(self, text: str) -> Prompt:
        """The prompt of a bare text; from any thread."""
        return self._prompts.prepare(text, raw=True, after=Dialogue())

    def take(self, request: Request) -> Taken:
        """The free slot that suits the request best.

        Raises:
            OptionError: as `prepare`.
        """
        free = [slot for slot in self.all if not slot.is_taken]
        free.sort(key=lambda slot: slot.rested_since, reverse=True)
        offers = [Taken(slot, slot.prompt(request)) for slot in free]
        costs = [offer.slot.cost(offer.prompt, age) for age, offer in enumerate(offers)]
        best = offers[costs.index(min(costs))]
        best.slot.is_taken = True
        best.slot.conversation.clear_abort()  # the last client may have left too late
        return self._with_kept(best, request)

    def _with_kept(self, offer: Taken, request: Request) -> Taken:
        """The offer, or its slot with a kept conversation, where that leaves less to read."""
        slot, shared = offer.slot, offer.slot.num_shared(offer.prompt)
        found = self.kept.find(offer.prompt.tokens)
        if found is not None and found.num_shared < shared + LEAST_TOKENS:
            found = None
        if found is not None or slot.num_cached - shared >= LEAST_TOKENS:
            self.kept.keep(slot.session)
        if found is None:
            return offer
        self.kept.restore(found.saved, slot.session)
        return Taken(slot, slot.prompt(request))

    def give_back(self, slot: Slot) -> None:
        """The slot's reply has ended."""
        slot.is_taken = False
        slot.rested_since = time.monotonic()

    def close(self) -> None:
        """Free everything.  Idempotent."""
        self.loaded.close()
