"""Figures for Prometheus: under the names that llama-server's users scrape, and ours beside them.

Source of the llamacpp: names: llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dyspec_edge.decode.stats import Stats

CONTENT_TYPE = CONTENT_TYPE_LATEST

FIRST_TOKEN = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper ends in seconds."""


class Metrics:
    """Running totals of one server.

    Args:
        load: replies under way, and requests that wait.
    """

    def __init__(self, load: Callable[[], tuple[int, int]]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(("read", "read_s", "written", "written_s"), 0.0)
        self._totals |= dict.fromkeys(("drafted", "accepted", "steps", "draft_passes"), 0.0)
        self._totals |= dict.fromkeys(("cached", "target_s", "draft_s", "replies", "left"), 0.0)
        self._longest = 0
        self._by_position: list[int] = []
        self._registry = CollectorRegistry()
        self._registry.register(_Totals(self._families))
        self._first_token = Histogram(
            "dyspec_first_token_seconds",
            "From the beginning of a reply to its first token.",
            buckets=FIRST_TOKEN,
            registry=self._registry,
        )

    def reply_ended(self, stats: Stats) -> None:
        """Count a reply."""
        with self._lock:
            for name, value in (
                ("read", stats.prompt_tokens - stats.cached_tokens),
                ("cached", stats.cached_tokens),
                ("read_s", stats.prefill_seconds),
                ("written", stats.generated_tokens),
                ("written_s", stats.decode_seconds),
                ("drafted", stats.draft_tokens),
                ("accepted", stats.accepted_tokens),
                ("steps", stats.steps),
                ("draft_passes", stats.draft_passes),
                ("target_s", stats.target_seconds),
                ("draft_s", stats.draft_seconds),
                ("replies", 1),
            ):
                self._totals[name] += value
            self._longest = max(self._longest, stats.context_used)
            lengths = stats.accept_length_histogram
            missing = len(lengths) - 1 - len(self._by_position)
            self._by_position += [0] * max(0, missing)
            for place in range(1, len(lengths)):
                self._by_position[place - 1] += sum(lengths[place:])
        self._first_token.observe(stats.time_to_first_token)

    def client_left(self) -> None:
        """Count a client that did not wait for the end."""
        with self._lock:
            self._totals["left"] += 1

    def text(self) -> bytes:
        """What is scraped."""
        return generate_latest(self._registry)

    def _families(self) -> Iterator[Metric]:
        running, waiting = self._load()
        with self._lock:
            t = dict(self._totals)
            positions = tuple(self._by_position)
        for name, help_, value in (
            ("llamacpp:prompt_tokens", "Prompt tokens processed.", t["read"]),
            ("llamacpp:prompt_seconds", "Prompt process time.", t["read_s"]),
            ("llamacpp:tokens_predicted", "Generation tokens processed.", t["written"]),
            ("llamacpp:tokens_predicted_seconds", "Predict process time.", t["written_s"]),
            ("llamacpp:n_decode", "Steps: passes of the target.", t["steps"]),
            ("llamacpp:spec_decode_num_draft_tokens", "Draft tokens checked.", t["drafted"]),
            ("llamacpp:spec_decode_num_accepted_tokens", "Those accepted.", t["accepted"]),
            ("llamacpp:spec_decode_num_drafts", "Verification steps.", t["steps"]),
            ("dyspec_cached_tokens", "Prompt tokens that were in the cache.", t["cached"]),
            ("dyspec_draft_passes", "Passes of the draft.", t["draft_passes"]),
            ("dyspec_target_seconds", "In the target's passes.", t["target_s"]),
            ("dyspec_draft_seconds", "In the draft's passes.", t["draft_s"]),
            ("dyspec_replies", "Replies that were completed.", t["replies"]),
            ("dyspec_clients_left", "Clients that left before the end.", t["left"]),
        ):
            yield CounterMetricFamily(name, help_, value=value)
        for name, help_, value in (
            ("llamacpp:prompt_tokens_seconds", "Tokens/s.", _ratio(t["read"], t["read_s"])),
            (
                "llamacpp:predicted_tokens_seconds",
                "Average generation throughput in tokens/s.",
                _ratio(t["written"], t["written_s"]),
            ),
            ("llamacpp:requests_processing", "Requests processing.", running),
            ("llamacpp:requests_deferred", "Requests deferred.", waiting),
            ("llamacpp:n_tokens_max", "Largest context observed.", self._longest),
            ("llamacpp:n_busy_slots_per_decode", "One reply a pass.", float(t["steps"] > 0)),
            (
                "dyspec_block_efficiency",
                "Tokens for each pass of the target.",
                _ratio(t["written"], t["steps"]),
            ),
        ):
            yield GaugeMetricFamily(name, help_, value=value)
        accepted = CounterMetricFamily(
            "llamacpp:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by draft position.",
            labels=["position"],
        )
        for place, count in enumerate(positions):
            accepted.add_metric([str(place)], count)
        yield accepted


class _Totals(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
