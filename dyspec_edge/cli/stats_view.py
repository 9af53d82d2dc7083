"""The figures of a reply in words: one line, or a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from dyspec_edge.engine import Stats


def summary(stats: Stats) -> str:
    """The figures of one reply in one line."""
    speed = f"{stats.tokens_per_second:.1f} tok/s"
    # A reply without drafts was plain: against the plain cost it shows noise only.
    if stats.draft_tokens and stats.speedup is not None and stats.plain_seconds_per_token:
        speed += f" ({stats.speedup:.2f}x plain {1 / stats.plain_seconds_per_token:.1f})"
    parts = [speed] if stats.steps else [f"prompt {stats.prompt_tokens_per_second:.1f} tok/s"]
    if stats.draft_tokens:
        parts.append(f"{stats.block_efficiency:.2f} tokens/pass")
        parts.append(f"{stats.acceptance_rate:.0%} accepted")
    if stats.learned and stats.steps:
        parts.append(f"{stats.plain_steps / stats.steps:.0%} plain steps")
    if stats.steps:  # else the prompt was read, and no more
        parts.append(f"first token {stats.time_to_first_token:.2f} s")
        parts.append(time_split(stats))
    if stats.streamed_bytes and stats.generated_tokens:
        parts.append(streamed(stats))
    read = f"prompt {stats.prompt_tokens - stats.cached_tokens} new"
    parts.append(read + (f" + {stats.cached_tokens} cached" if stats.cached_tokens else ""))
    parts.append(f"context {stats.context_used}/{stats.num_ctx}")
    parts.append(f"seed {stats.seed}")
    return " · ".join(parts)


def time_split(stats: Stats) -> str:
    """Where the time of the reply went, in per cent."""
    other = stats.rows_seconds + stats.sampling_seconds + stats.overhead_seconds
    total = stats.target_seconds + stats.draft_seconds + other
    if total <= 0.0:
        return "no time spent"
    shares = [("target", stats.target_seconds), ("draft", stats.draft_seconds), ("other", other)]
    return " ".join(
        f"{name} {part / total:.0%}" for name, part in shares if name != "draft" or part
    )


def streamed(stats: Stats) -> str:
    """What was read of the weights, and how much of that was hidden behind computing."""
    per_token = stats.streamed_bytes / max(1, stats.generated_tokens)
    seconds = max(stats.stream_read_seconds, 1e-9)
    hidden = max(0.0, 1 - stats.stream_wait_seconds / seconds)
    return (
        f"{per_token / 1e6:.0f} MB/token read at {stats.streamed_bytes / seconds / 1e6:.0f} MB/s, "
        f"{hidden:.0%} hidden"
    )


def table(stats: Stats) -> Table:
    """Every figure of the last reply."""
    rows: list[tuple[str, str]] = [
        ("policy, verifier", f"{stats.policy}, {stats.verify}"),
        ("temperature, seed", f"{stats.temperature:g}, {stats.seed}"),
        ("prompt", f"{stats.prompt_tokens} tokens, {stats.cached_tokens} of them cached"),
        ("generated", f"{stats.generated_tokens} tokens in {stats.steps} steps"),
        ("speed", f"{stats.tokens_per_second:.2f} tok/s"),
        ("plain decoding", _plain(stats)),
        ("prompt speed", f"{stats.prompt_tokens_per_second:.1f} tok/s"),
        ("time to first token", f"{stats.time_to_first_token:.3f} s"),
        ("tokens per target pass", f"{stats.block_efficiency:.2f}"),
        ("drafted, accepted", f"{stats.draft_tokens}, {stats.accepted_tokens}"),
        ("acceptance rate", f"{stats.acceptance_rate:.1%}"),
        ("accept lengths", _histogram(stats.accept_length_histogram)),
        (
            "steps",
            f"{stats.plain_steps} plain, {stats.chain_steps} chains, {stats.tree_steps} trees",
        ),
        ("tree sizes", _histogram(stats.tree_size_histogram)),
        *([("learned", _learned(stats.learned))] if stats.learned else []),
        ("target", f"{stats.target_seconds:.3f} s, {stats.target_rows} rows"),
        (
            "draft",
            f"{stats.draft_seconds:.3f} s, {stats.draft_rows} rows in {stats.draft_passes} passes",
        ),
        *([("weights", streamed(stats))] if stats.streamed_bytes else []),
        ("logit rows", f"{stats.rows_seconds:.3f} s"),
        ("sampling", f"{stats.sampling_seconds:.3f} s"),
        ("all the rest", f"{stats.overhead_seconds:.3f} s"),
        ("context", f"{stats.context_used} of {stats.num_ctx} tokens"),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def _plain(stats: Stats) -> str:
    if not stats.plain_seconds_per_token:
        return "not measured"
    speed = f"{1 / stats.plain_seconds_per_token:.2f} tok/s"
    return speed if stats.speedup is None else f"{speed}, speedup {stats.speedup:.2f}x"


def _learned(learned: dict[str, float]) -> str:
    account = learned["account"]
    return (
        f"a {learned['acceptance']:.2f}, kappa {learned['kappa']:.2f}, "
        f"a second is worth {learned['worth']:.2f} tokens, "
        f"{abs(account):.2f} s {'ahead of' if account >= 0 else 'behind'} plain decoding"
    )


def _histogram(counts: tuple[int, ...]) -> str:
    shown = [f"{length}: {count}" for length, count in enumerate(counts) if count]
    return ", ".join(shown) or "none"
