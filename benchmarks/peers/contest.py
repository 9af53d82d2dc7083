"""The search on one half of the prompts, the runs on the other, and a look at the texts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.near_ties import gaps
from benchmarks.peers.programs import Peer, Task
from benchmarks.peers.rivals import PLAIN
from benchmarks.peers.settings import Settings, describe, num_trials, search
from benchmarks.workbench import Bench
from dyspec_edge.bench.prompts import Prompt, choose
from dyspec_edge.decode.cache import common_prefix
from dyspec_edge.engine.prompt import Dialogue, PromptBuilder
from dyspec_edge.errors import DyspecError
from dyspec_edge.llama import Model

REFERENCE = "none"
"""Our policy whose text is what everybody's is held against."""

Run = dict[str, Any]
Prompts = dict[str, list[Prompt]]
"""By group of categories."""

Best = dict[tuple[str, str], Settings]
Cells = dict[tuple[str, str], list[Run]]
"""By group and peer."""


@dataclass(frozen=True, slots=True)
class Contest:
    """Who runs on what.

    Attributes:
        trials, finals: prompts of the two halves.
    """

    bench: Bench
    vocabulary: Model
    ours: Sequence[Peer]
    others: Sequence[Peer]
    trials: Prompts
    finals: Prompts

    @property
    def everybody(self) -> list[Peer]:
        """All, ours first."""
        return [*self.ours, *self.others]

    def tune(self, num_tokens: int) -> Best:
        """The best settings by group and peer, on the first half."""
        best = {}
        for group, prompts in self.trials.items():
            for peer in self.everybody:

                def trial(settings: Settings, peer: Peer = peer, of: Any = prompts) -> float:
                    found = [self._run(peer, settings, p, num_tokens, part="trial") for p in of]
                    return speed(found)

                best[group, peer.name] = search(peer.axes, trial)
        return best

    def measure(self, best: Best, num_rounds: int) -> Cells:
        """Runs of the second half; those of two peers at one place are of one prompt and round."""
        cells: Cells = {key: [] for key in best}
        order, num_tokens = self.everybody, self.bench.setup.num_tokens
        for number in range(num_rounds):
            for group, prompts in self.finals.items():
                for prompt in prompts:
                    order.reverse()
                    for peer in order:
                        key, where = (group, peer.name), {"part": "run", "round": number}
                        run = self._run(peer, best[key], prompt, num_tokens, **where)
                        cells[key].append({**run, "prompt": prompt, **where})
        return cells

    def summaries(self, best: Best, cells: Cells) -> dict[str, dict[str, Any]]:
        """By group and peer."""
        document: dict[str, dict[str, Any]] = {group: {} for group in self.finals}
        for (group, name), found in cells.items():
            ours, plain = (cells[group, who] for who in (self.ours[0].name, PLAIN))
            document[group][name] = {
                "settings": best[group, name],
                "tokens_per_second": statistics.median(speed([run]) for run in found),
                "against_plain": statistics.median(
                    speed([run]) / speed([other]) for run, other in zip(found, plain, strict=True)
                ),
                "timed_tokens": [run["timed_tokens"] for run in found],
                "drafted": sum(run["drafted"] for run in found),
                "accepted": sum(run["accepted"] for run in found),
                "load": [run["load"] for run in found],
                "gaps": [self._gap(name, *both) for both in zip(found, ours, strict=True)],
            }
        return document

    def num_runs(self, num_rounds: int) -> int:
        """Trials, runs, and looks at their texts."""
        trials = sum(num_trials(peer.axes) for peer in self.everybody)
        searched, measured = (sum(map(len, h.values())) for h in (self.trials, self.finals))
        return trials * searched + 2 * num_rounds * len(self.everybody) * measured

    def _run(
        self, peer: Peer, settings: Settings, prompt: Prompt, num_tokens: int, **where: Any
    ) -> Run:
        key = {"peer": peer.name, "settings": describe(settings), "limit": num_tokens, **where}
        task = self._task(prompt, num_tokens)
        return self.bench.run(
            {**key, "prompt": prompt.id}, lambda: asdict(peer.run(task, settings))
        )

    def _task(self, prompt: Prompt, num_tokens: int) -> Task:
        """The prompt as everybody gets it."""
        read = PromptBuilder(self.vocabulary, None).prepare(
            prompt.messages, raw=False, after=Dialogue()
        )
        pieces = [self.vocabulary.piece(token, special=True) for token in read.tokens]
        shown = b"".join(pieces).decode("utf-8", "replace")
        # llama.cpp's programs may put a beginning-of-text token in front by themselves.
        for text in (read.text, read.text.removeprefix(pieces[0].decode("utf-8", "replace"))):
            found = self.vocabulary.tokenize(text, add_special=True, parse_special=True)
            if tuple(found) == read.tokens:
                return Task(read.tokens, text, shown, prompt.messages, num_tokens)
        raise DyspecError(f"llama.cpp cuts the prompt {prompt.id} into other tokens than we do")

    def _gap(self, name: str, run: Run, ours: Run) -> float | None:
        """Of logits where a text leaves plain decoding's; None where it does not."""
        theirs, own = (_tokens(one, self.vocabulary) for one in (run, ours))
        shared = common_prefix(theirs, own)
        prompt: Prompt = run["prompt"]

        def job() -> Run:
            if shared == min(len(theirs), len(own)):
                return {"gap": None}
            target = self.bench.engine(REFERENCE).conversation.target
            read = self._task(prompt, 0).tokens
            return {"gap": gaps(target, read, theirs[: shared + 1])[-1]}

        key = {"part": "text", "peer": name, "prompt": prompt.id, "round": run["round"]}
        found: float | None = self.bench.run(key, job)["gap"]
        return found


def halves(path: Path, categories: Sequence[str], each: int) -> tuple[Prompts, Prompts]:
    """Prompts for the search, and the others; of an odd number more of the others."""
    trials: Prompts = {}
    finals: Prompts = {}
    for category in dict.fromkeys(categories):
        prompts = choose(path, (category,), each)
        if len(prompts) < 2:
            raise click.UsageError(
                f"{path} holds one prompt of the category {category}, two are needed"
            )
        middle, group = len(prompts) // 2, prompts[0].group
        trials.setdefault(group, []).extend(prompts[:middle])
        finals.setdefault(group, []).extend(prompts[middle:])
    return trials, finals


def speed(found: Sequence[Run]) -> float:
    """Tokens a second over all the runs."""
    return float(sum(run["timed_tokens"] for run in found) / sum(run["seconds"] for run in found))


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
