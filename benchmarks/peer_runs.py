"""The search on one half of the prompts, the runs on the other, and a look at the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.near_ties import gaps
from benchmarks.peer_programs import Peer, Task
from benchmarks.prompts import Prompt
from benchmarks.runs import Runs
from benchmarks.tuning import Settings, describe, num_trials, search
from benchmarks.workbench import Engines, Setup
from dyspec_edge.decode.cache import common_prefix
from dyspec_edge.engine import Engine
from dyspec_edge.errors import DyspecError
from dyspec_edge.llama.model import Model

REFERENCE = "none"
"""Our policy whose text is what everybody's is held against."""

Run = dict[str, Any]
Cells = dict[tuple[str, str], list[Run]]
"""Runs by group and peer; those of two peers at one place are of the same prompt and round."""

Best = dict[tuple[str, str], Settings]
"""The settings that were found for a group and a peer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Whom to run on what.

    Attributes:
        trials, finals: prompts of the two halves, by group of categories.
    """

    rivals: Sequence[Peer]
    ours: Sequence[Peer]
    trials: dict[str, list[Prompt]]
    finals: dict[str, list[Prompt]]
    rounds: int
    trial_tokens: int

    @property
    def groups(self) -> list[str]:
        """Each gets settings of its own."""
        return list(self.trials)

    @property
    def everybody(self) -> list[Peer]:
        """All, ours first."""
        return [*self.ours, *self.rivals]

    @property
    def num_runs(self) -> int:
        """Prompts to read, trials, runs and looks at their texts."""
        trials = sum(num_trials(peer.axes) for peer in self.rivals)
        each = 2 * self.rounds * len(self.everybody)
        return sum(
            len(self.trials[group]) * (1 + trials) + len(self.finals[group]) * (1 + each)
            for group in self.groups
        )


def measure(plan: Plan, setup: Setup, runs: Runs) -> tuple[Cells, Best]:
    """The runs of the second half, everybody at the settings that the first half chose."""
    runs.expect(plan.num_runs)
    tasks = _read_prompts(plan, setup, runs)
    best: Best = {}
    for group in plan.groups:
        for peer in plan.everybody:

            def trial(settings: Settings, peer: Peer = peer, group: str = group) -> float:
                prompts = plan.trials[group]
                part = {"part": "trial", "limit": plan.trial_tokens}
                found = [
                    _run(runs, peer, tasks[p.id], settings, {**part, "prompt": p.id})
                    for p in prompts
                ]
                return speed(found)

            best[group, peer.name] = search(peer.axes, trial)
    cells: Cells = {(g, peer.name): [] for g in plan.groups for peer in plan.everybody}
    order = plan.everybody
    for number in range(plan.rounds):
        for group in plan.groups:
            for prompt in plan.finals[group]:
                order.reverse()
                for peer in order:
                    part = {"part": "run", "prompt": prompt.id, "round": number}
                    found = _run(runs, peer, tasks[prompt.id], best[group, peer.name], part)
                    cells[group, peer.name].append({**found, **part})
    return cells, best


def _run(runs: Runs, peer: Peer, task: Task, settings: Settings, part: dict[str, Any]) -> Run:
    task = replace(task, num_tokens=part.get("limit", task.num_tokens))
    key = {"peer": peer.name, "settings": describe(settings), **part}
    return runs(key, lambda: asdict(peer.run(task, settings)))


def _read_prompts(plan: Plan, setup: Setup, runs: Runs) -> dict[str, Task]:
    """Every prompt as everybody gets it, by its id."""
    tasks = {}
    with Engines() as engines:
        for group in plan.groups:
            for prompt in (*plan.trials[group], *plan.finals[group]):

                def job(prompt: Prompt = prompt) -> dict[str, Any]:
                    engine = engines.get(setup.config(REFERENCE))
                    tokens = _read(engine, prompt)
                    rendered = engine.prepare(prompt.messages).text
                    return {"tokens": tokens, **_as_text(rendered, tokens, setup)}

                found = runs({"part": "prompt", "prompt": prompt.id}, job)
                tasks[prompt.id] = Task(
                    tuple(found["tokens"]),
                    found["text"],
                    found["shown"],
                    prompt.messages,
                    setup.num_tokens,
                )
    return tasks


def _read(engine: Engine, prompt: Prompt) -> list[int]:
    """The ids that the engine reads."""
    return list(engine.prepare(prompt.messages).tokens)


def _as_text(rendered: str, tokens: list[int], setup: Setup) -> dict[str, str]:
    """The text that llama.cpp's programs cut into `tokens`, and what they then show of it."""
    with Model(setup.model, vocab_only=True) as vocabulary:
        pieces = [vocabulary.piece(token, special=True) for token in tokens]
        shown = b"".join(pieces).decode("utf-8", "replace")
        # They may put a beginning-of-text token in front by themselves.
        for text in (rendered, rendered.removeprefix(pieces[0].decode("utf-8", "replace"))):
            if vocabulary.tokenize(text, add_special=True, parse_special=True) == tokens:
                return {"text": text, "shown": shown}
    raise DyspecError("llama.cpp cuts the rendered prompt into other tokens than the engine does")


def check_texts(
    cells: Cells, best: Best, plan: Plan, setup: Setup, runs: Runs
) -> dict[tuple[str, str], list[float | None]]:
    """Gap of logits where a text leaves plain decoding's, or None where it does not."""
    reference = f"dyspec-edge, {REFERENCE}"
    texts: dict[tuple[str, str], list[float | None]] = {}
    prompts = {prompt.id: prompt for half in plan.finals.values() for prompt in half}
    with Engines() as engines, Model(setup.model, vocab_only=True) as vocabulary:
        for (group, name), found in cells.items():
            texts[group, name] = []
            settings = describe(best[group, name])
            for run, ours in zip(found, cells[group, reference], strict=True):
                reply = _first_difference(run, ours, vocabulary)

                def job(run: Run = run, reply: list[int] | None = reply) -> dict[str, Any]:
                    if reply is None:
                        return {"gap": None}
                    engine = engines.get(setup.config(REFERENCE))
                    read = _read(engine, prompts[run["prompt"]])
                    return {"gap": gaps(engine.decoder.target, read, reply)[-1]}

                place = {"prompt": run["prompt"], "round": run["round"]}
                key = {"part": "text", "peer": name, "settings": settings, **place}
                texts[group, name].append(runs(key, job)["gap"])
    return texts


def _first_difference(run: Run, ours: Run, vocabulary: Model) -> list[int] | None:
    """The reply up to its first token that is not ours; None if there is no such token."""
    theirs, own = (_tokens(one, vocabulary) for one in (run, ours))
    shared = common_prefix(theirs, own)
    return None if shared == min(len(theirs), len(own)) else theirs[: shared + 1]


def _tokens(run: Run, vocabulary: Model) -> list[int]:
    """The reply's ids, with an end token where it was over."""
    if run["tokens"] is not None:
        tokens = list(run["tokens"])
    else:
        text = run["text"].rstrip("\ufffd")  # half a character at the end
        tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
    while tokens and tokens[-1] in vocabulary.end_tokens:
        tokens.pop()
    return [*tokens, vocabulary.eos] if run["is_over"] else tokens


def speed(found: Sequence[Run]) -> float:
    """Tokens a second over all the runs."""
    return float(sum(run["timed_tokens"] for run in found) / sum(run["seconds"] for run in found))
