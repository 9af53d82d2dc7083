"""The runs of one command: what was asked for, what is still to do, what came of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dyspec_edge.bench.journal import Journal
from dyspec_edge.bench.prompts import Prompt
from dyspec_edge.bench.schedule import Lane, Turn, turns
from dyspec_edge.bench.stage import Stage
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.engine import EngineConfig
from dyspec_edge.load.machine import physical_cores

log = logging.getLogger(__name__)

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command asks for.

    Attributes:
        sampling: with the seed of round 0, each later round has the next one; the temperature is
            that of the lane.
        fresh: policies forget after every run what they have learned.
    """

    prompts: Sequence[Prompt]
    policies: Sequence[str]
    verifiers: Sequence[str]
    temperatures: Sequence[float]
    num_rounds: int
    num_tokens: int
    sampling: SamplingParams
    fresh: bool


class Session:
    """Runs in the order in which they shall be done, and a journal of those that are.

    Args:
        hashes: sha256 of target and draft (None without one).
        conditions: what else goes into every line.
    """

    def __init__(
        self,
        config: EngineConfig,
        wanted: Wanted,
        journal: Journal,
        hashes: tuple[str, str | None],
        conditions: Mapping[str, Any],
    ) -> None:
        self._wanted = wanted
        self._journal = journal
        self._conditions = conditions
        self._constants = {
            "models": {"target": hashes[0], "draft": hashes[1]},
            "settings": _settings(config),
            "tokens": wanted.num_tokens,
            "fresh": wanted.fresh,
        }
        self.turns = turns(
            wanted.prompts,
            wanted.policies,
            wanted.verifiers,
            wanted.temperatures,
            wanted.num_rounds,
        )

    @property
    def remaining(self) -> list[Turn]:
        """Runs that are still to be done."""
        return [turn for turn in self.turns if self._journal.get(self._key(turn)) is None]

    @property
    def lanes(self) -> list[Lane]:
        """All competitors."""
        return list(dict.fromkeys(turn.lane for turn in self.turns))

    @property
    def lines(self) -> list[Line]:
        """The finished runs, as they stand in the journal."""
        keys = [self._key(turn) for turn in self.turns]
        found = [(key, self._journal.get(key)) for key in keys]
        return [{"run": key, "result": result} for key, result in found if result is not None]

    def perform(self, stage: Stage, on_finished: Callable[[], None]) -> None:
        """Do what remains.

        Args:
            on_finished: called when a run is finished and kept.

        Raises:
            Cancelled: by `Stage.cancel`.
            DyspecError: a run failed; those before it are kept.
        """
        wanted, remaining = self._wanted, self.remaining
        prompts = list(dict.fromkeys(turn.prompt for turn in remaining))
        stage.check_lengths(prompts, wanted.num_tokens)
        drafting = [turn.lane for turn in remaining if turn.lane.policy != "none"]
        stage.warm_up(drafting[0] if drafting else remaining[0].lane)
        if not wanted.fresh:
            self._restore(stage)
        for turn in remaining:
            result = stage.play(turn, self._sampling(turn), wanted.num_tokens)
            self._journal.add(self._key(turn), {**result, **self._conditions})
            on_finished()

    def _restore(self, stage: Stage) -> None:
        """Let every policy go on with what it had learned in its last finished run."""
        learned: dict[Lane, Mapping[str, Any]] = {}
        for turn in self.turns:
            result = self._journal.get(self._key(turn))
            if result is not None and result["learned"] is not None:
                learned[turn.lane] = result["learned"]
        for lane, what in learned.items():
            try:
                stage.restore(lane, what)
            except (KeyError, TypeError, ValueError) as error:
                log.info("%s starts afresh: %s", lane.policy, error)

    def _sampling(self, turn: Turn) -> SamplingParams:
        sampling = self._wanted.sampling
        seed = (sampling.seed or 0) + turn.round
        return replace(sampling, temperature=turn.lane.temperature, seed=seed)

    def _key(self, turn: Turn) -> dict[str, Any]:
        prompt = turn.prompt
        return {
            **self._constants,
            "prompt": prompt.id,
            "category": prompt.category,
            "group": prompt.group,
            "prompt_sha256": hashlib.sha256(prompt.text.encode()).hexdigest(),
            "policy": turn.lane.policy,
            "verify": turn.lane.verify,
            "round": turn.round,
            "sampling": asdict(self._sampling(turn)),
        }


def _settings(config: EngineConfig) -> dict[str, Any]:
    """What was asked for of an engine, beside files, policy and verifier."""
    settings = asdict(config)
    for name in ("model", "draft", "policy", "verify", "verbose", "require_gpu"):
        del settings[name]
    settings["num_threads"] = config.num_threads or physical_cores()
    settings["lora"] = [Path(path).name for path in config.lora]
    return settings
