"""Figures of a reply under the names that clients of OpenAI and of llama-server read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dyspec_edge.decode.logprobs import TokenLogprobs
from dyspec_edge.decode.stats import Stats

LEAST_LOGPROB = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON cannot say."""


def usage(replies: Sequence[Stats], n: int = 1) -> dict[str, Any]:
    """OpenAI's `usage`.

    Args:
        n: replies in a row that have the same prompt, which counts once.
    """
    first = replies[::n]
    prompt = sum(stats.prompt_tokens for stats in first)
    generated = sum(stats.generated_tokens for stats in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(stats.cached_tokens for stats in first)},
    }


def of_whole(replies: Sequence[Stats], n: int) -> dict[str, Any]:
    """Members of an answer that is complete: `usage`, and the `timings` of a single reply."""
    single = {"timings": timings(replies[0])} if len(replies) == 1 else {}
    return {"usage": usage(replies, n), **single}


def timings(stats: Stats) -> dict[str, Any]:
    """llama-server's `timings`, and what else is known of the steps."""
    num_read = stats.prompt_tokens - stats.cached_tokens
    return {
        "cache_n": stats.cached_tokens,
        "prompt_n": num_read,
        "prompt_ms": 1e3 * stats.prefill_seconds,
        "prompt_per_token_ms": _ratio(1e3 * stats.prefill_seconds, num_read),
        "prompt_per_second": _ratio(num_read, stats.prefill_seconds),
        "predicted_n": stats.generated_tokens,
        "predicted_ms": 1e3 * stats.decode_seconds,
        "predicted_per_token_ms": _ratio(1e3 * stats.decode_seconds, stats.generated_tokens),
        "predicted_per_second": stats.tokens_per_second,
        "draft_n": stats.draft_tokens,
        "draft_n_accepted": stats.accepted_tokens,
        "steps": stats.steps,
        "block_efficiency": stats.block_efficiency,
        "target_ms": 1e3 * stats.target_seconds,
        "draft_ms": 1e3 * stats.draft_seconds,
        "sampling_ms": 1e3 * (stats.sampling_seconds + stats.rows_seconds),
        "overhead_ms": 1e3 * stats.overhead_seconds,
        "streamed_bytes": stats.streamed_bytes,
        "stream_read_ms": 1e3 * stats.stream_read_seconds,
        "stream_wait_ms": 1e3 * stats.stream_wait_seconds,
        "first_token_ms": 1e3 * stats.time_to_first_token,
        "speedup": stats.speedup,
        "policy": stats.policy,
        "verify": stats.verify,
        "seed": stats.seed,
    }


class LogprobWriter:
    """Writes log-probabilities as OpenAI's protocols do.

    Args:
        piece: the bytes of a token id, those of control tokens included.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece

    def chat(self, tokens: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        """The `content` of a chat's `logprobs`."""
        return [
            {
                **self._one(token.token, token.logprob),
                "top_logprobs": [self._one(id_, logprob) for id_, logprob in token.top],
            }
            for token in tokens
        ]

    def completion(self, tokens: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
        """A completion's `logprobs`, its text beginning at `offset`."""
        texts = [self._text(token.token) for token in tokens]
        offsets = [offset + sum(map(len, texts[:i])) for i in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {self._text(id_): _finite(logprob) for id_, logprob in token.top}
                for token in tokens
            ],
            "text_offset": offsets,
        }

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "id": token,
            "token": self._text(token),
            "bytes": list(self._piece(token)),
            "logprob": _finite(logprob),
        }

    def _text(self, token: int) -> str:
        return self._piece(token).decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
