"""The plain draw: llama.cpp's chain and our noise against an independent numpy version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from dyspec_edge.decode.sampling import Sampler, SamplingParams, fresh_seed
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.llama import Model
from dyspec_edge.native import lib
from tests import tiny

Row = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

NUM_VOCAB = len(tiny.VOCABULARY)
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
# Short runs, a long one, and letters that stand once; no token that breaks a DRY sequence.
WRITTEN = [300, 301, 302, 303, 280, 300, 301, 302, 281, 290, 301, 302, 280, 282, 301, 302]
BREAKER = tiny.VOCABULARY.texts.index(":")


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model(tiny_target) as opened:
        yield opened


def make_row(seed: int, spread: float = 2.5) -> Row:
    row = np.random.default_rng(seed).normal(0, spread, NUM_VOCAB).astype(np.float32)
    row[WRITTEN] += 4  # what penalties act on would be likely without them
    return row


def make_flat_row() -> Row:
    """Twenty tokens within a factor of ten, the written ones among them, and a long tail."""
    rng = np.random.default_rng(11)
    row = rng.normal(-7, 1, NUM_VOCAB).astype(np.float32)
    likely = rng.permutation([*sorted(set(WRITTEN)), *range(310, 323)])
    row[likely] = np.linspace(0, -2.3, len(likely))
    return row


def penalised(logits: Floats, params: SamplingParams, written: Sequence[int]) -> Floats:
    out: Floats = logits.copy()
    for token, bias in params.logit_bias:
        out[token] += bias
    last = list(written)[-params.repeat_last_n :] if params.repeat_last_n > 0 else []
    for token, count in Counter(last).items():
        if out[token] <= 0:
            out[token] *= params.repeat_penalty
        else:
            out[token] /= params.repeat_penalty
        out[token] -= count * params.frequency_penalty + params.presence_penalty
    if params.dry_multiplier > 0:
        for token, length in repeats(written, params).items():
            excess = length - params.dry_allowed_length
            out[token] -= params.dry_multiplier * params.dry_base**excess
    return out


def repeats(written: Sequence[int], params: SamplingParams) -> dict[int, int]:
    """By token, how long a repetition of the text's end would go on with it (DRY)."""
    text = list(written)
    if params.dry_penalty_last_n >= 0:
        text = text[len(text) - min(len(text), params.dry_penalty_last_n) :]
    limit = text[::-1].index(BREAKER) if BREAKER in text else len(text)
    found: dict[int, int] = {}
    for at in range(1, len(text)):
        length = 0
        while length < min(at, limit) and text[at - 1 - length] == text[-1 - length]:
            length += 1
        if length >= params.dry_allowed_length and text[at] != BREAKER:
            found[text[at]] = max(length, found.get(text[at], 0))
    return found


def soft(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def cut(logits: Floats, order: npt.NDArray[np.intp], num_kept: int) -> Floats:
    out = np.full_like(logits, -np.inf)
    out[order[:num_kept]] = logits[order[:num_kept]]
    return out


def exact(row: Row, params: SamplingParams, written: Sequence[int] = ()) -> Floats:
    """float64[num_vocab], the distribution that the options describe."""
    logits = penalised(row.astype(np.float64), params, written)
    if params.temperature == 0:
        return np.where(np.arange(len(row)) == np.argmax(logits), 1.0, 0.0)
    if params.top_k > 0:
        logits = cut(logits, np.argsort(-logits), params.top_k)
    if params.typical < 1:
        p = soft(logits)
        surprise = -np.log(np.maximum(p, 1e-300))
        order = np.argsort(np.where(p > 0, np.abs(surprise - (p * surprise).sum()), np.inf))
        logits = cut(logits, order, int((np.cumsum(p[order]) <= params.typical).sum()) + 1)
    if params.top_p < 1:
        p = soft(logits)
        order = np.argsort(-p)
        logits = cut(logits, order, int((np.cumsum(p[order]) < params.top_p).sum()) + 1)
    if params.min_p > 0:
        p = soft(logits)
        logits = np.where(p >= params.min_p * p.max(), logits, -np.inf)
    return soft(logits / params.temperature)


CASES = {
    "plain": PLAIN,
    "cool": SamplingParams(temperature=0.6, top_k=0, top_p=1.0, min_p=0.0),
    "hot": SamplingParams(temperature=1.7, top_k=0, top_p=1.0, min_p=0.0),
    "top-k": SamplingParams(temperature=1.0, top_k=7, top_p=1.0, min_p=0.0),
    "top-p": SamplingParams(temperature=1.0, top_k=0, top_p=0.8, min_p=0.0),
    "min-p": SamplingParams(temperature=1.3, top_k=0, top_p=1.0, min_p=0.1),
    "typical": SamplingParams(temperature=1.0, top_k=30, top_p=1.0, min_p=0.0, typical=0.7),
    "defaults": SamplingParams(),
    "all": SamplingParams(temperature=0.9, top_k=50, typical=0.95, top_p=0.9, min_p=0.02),
    "repeat": SamplingParams(repeat_penalty=1.6),
    "repeat-few": SamplingParams(repeat_penalty=1.6, repeat_last_n=5),
    "frequency": SamplingParams(frequency_penalty=1.1),
    "presence": SamplingParams(presence_penalty=2.5),
    "dry": SamplingParams(dry_multiplier=0.8, dry_allowed_length=1),
    "dry-all": SamplingParams(dry_multiplier=1.5, dry_base=1.3, dry_penalty_last_n=-1),
    "dry-few": SamplingParams(dry_multiplier=1.5, dry_penalty_last_n=9),
    "bias": SamplingParams(temperature=1.0, logit_bias=((300, -1.0), (17, 3.0), (301, -np.inf))),
    "everything": SamplingParams(
        temperature=0.7,
        typical=0.97,
        repeat_penalty=1.2,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        dry_multiplier=0.8,
        logit_bias=((302, 2.0),),
    ),
}


@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
def test_the_chain_leaves_the_described_distribution(model: Model, params: SamplingParams) -> None:
    with closing(Sampler(model, params, seed=1, prompt=WRITTEN[:6])) as sampler:
        for token in WRITTEN[6:10]:
            sampler.accept([token])
        sampler.accept(WRITTEN[10:])
        for seed in range(40):
            row = make_row(seed)
            ids, probs = sampler.distribution(row.ctypes.data)
            wanted = exact(row, params, WRITTEN)
            assert ids.tolist() == np.flatnonzero(wanted).tolist()
            assert probs == pytest.approx(wanted[ids], abs=2e-5)


def test_a_breaker_ends_a_repetition(model: Model) -> None:
    written = [300, BREAKER, 302, 303, 280, 300, BREAKER, 302]
    params = SamplingParams(dry_multiplier=2.0, dry_allowed_length=1)
    assert repeats(written, params) == {303: 1}, "not 3: the breaker does not count"
    with closing(Sampler(model, params, seed=1, prompt=written)) as sampler:
        row = make_row(3)
        ids, probs = sampler.distribution(row.ctypes.data)
        wanted = exact(row, params, written)
        assert probs == pytest.approx(wanted[ids], abs=2e-5)


@pytest.mark.parametrize("name", ["plain", "cool", "defaults", "typical", "bias", "everything"])
def test_draws_follow_the_distribution(model: Model, name: str) -> None:
    params, num_draws = CASES[name], 6000
    row = make_flat_row()
    wanted = num_draws * exact(row, params, WRITTEN)
    with closing(Sampler(model, params, seed=2026, prompt=WRITTEN)) as sampler:
        drawn = [sampler.sample(row.ctypes.data, index) for index in range(num_draws)]
    counts = np.bincount(drawn, minlength=NUM_VOCAB)
    assert not counts[wanted == 0].any()
    common = wanted >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(wanted[common], wanted[~common].sum())
    full = expected > 0
    assert np.count_nonzero(full) > 4
    assert chisquare(observed[full], expected[full]).pvalue > 1e-3


def test_picks_follow_the_given_distribution(model: Model) -> None:
    """The bonus token of `residual`: what is left of a distribution, zeros included."""
    ids = np.array([4, 9, 300, 301, 302], np.int32)
    probs = np.array([0.4, 0.0, 0.3, 0.1, 0.2])
    with closing(Sampler(model, PLAIN, seed=5)) as sampler:
        drawn = [sampler.pick(ids, probs, index) for index in range(5000)]
    counts = np.array([drawn.count(token) for token in ids])
    assert counts[1] == 0
    assert chisquare(counts[probs > 0], 5000 * probs[probs > 0]).pvalue > 1e-3


def test_chances_are_uniform_and_apart_from_the_draws(model: Model) -> None:
    with closing(Sampler(model, PLAIN, seed=6)) as sampler:
        chances = np.array([[sampler.chance(i, r, 300) for r in (0, 1)] for i in range(2000)])
    counts, _ = np.histogram(chances[:, 0], bins=20, range=(0, 1))
    assert chisquare(counts).pvalue > 1e-3
    assert abs(np.corrcoef(chances.T)[0, 1]) < 0.08


def test_a_draw_depends_on_seed_and_index_alone(model: Model) -> None:
    row = make_row(1, spread=1.0)

    def draws(seed: int) -> list[int]:
        with closing(Sampler(model, PLAIN, seed)) as sampler:
            return [sampler.sample(row.ctypes.data, index) for index in range(50)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert draws(1) != draws(1 + 2**32), "all 64 bits count"
    with closing(Sampler(model, PLAIN, 1)) as sampler:
        backwards = [sampler.sample(row.ctypes.data, index) for index in range(49, -1, -1)]
    assert backwards[::-1] == draws(1), "no state is carried from draw to draw"
    assert len(set(draws(1))) > 10


def test_greedy_is_the_largest_logit(model: Model) -> None:
    with closing(Sampler(model, SamplingParams(temperature=0.0, top_k=3), seed=1)) as sampler:
        for seed in range(20):
            row = make_row(seed)
            assert sampler.sample(row.ctypes.data, seed) == int(np.argmax(row))
        row[[100, 50]] = 90.0
        assert sampler.sample(row.ctypes.data, 0) == 50, "the lower id among equals"
        ids, probs = sampler.distribution(row.ctypes.data)
        assert probs[ids == 50] == 1.0


@pytest.mark.parametrize("name", ["repeat", "frequency", "presence", "dry", "bias", "everything"])
def test_greedy_with_penalties_is_the_largest_penalised_logit(model: Model, name: str) -> None:
    params = SamplingParams(
        **{f: getattr(CASES[name], f) for f in SamplingParams.__dataclass_fields__}
        | {"temperature": 0.0}
    )
    changed = 0
    with closing(Sampler(model, params, seed=1, prompt=WRITTEN)) as sampler:
        for seed in range(30):
            row = make_row(seed, spread=1.0)
            token = sampler.sample(row.ctypes.data, seed)
            wanted = exact(row, params, WRITTEN)
            assert wanted[token] == 1.0
            ids, probs = sampler.distribution(row.ctypes.data)
            assert ids[probs == 1.0].tolist() == [token]
            changed += token != int(np.argmax(row))
    assert changed > 0, "the options do something here"


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, repeat_penalty=1.1),
        SamplingParams(),
        PLAIN,
    ],
)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_row_without_a_finite_value_is_an_error(
    model: Model, params: SamplingParams, value: float
) -> None:
    row = np.full(NUM_VOCAB, value, np.float32)
    with closing(Sampler(model, params, seed=1, prompt=WRITTEN)) as sampler:
        with pytest.raises(DyspecError, match="finite"):
            sampler.sample(row.ctypes.data, 0)
        with pytest.raises(DyspecError, match="finite"):
            sampler.distribution(row.ctypes.data)


def test_the_row_itself_is_not_changed(model: Model) -> None:
    row = make_row(1)
    before = row.copy()
    with closing(Sampler(model, CASES["everything"], seed=1, prompt=WRITTEN)) as sampler:
        sampler.sample(row.ctypes.data, 0)
        sampler.distribution(row.ctypes.data)
    assert (row == before).all()


def test_seconds_are_counted(model: Model) -> None:
    row = make_row(1)
    with closing(Sampler(model, SamplingParams(temperature=0.0), seed=1)) as sampler:
        sampler.sample(row.ctypes.data, 0)
        assert sampler.rows_seconds > 0
        assert sampler.seconds == 0
    with closing(Sampler(model, SamplingParams(), seed=1)) as sampler:
        sampler.sample(row.ctypes.data, 0)
        assert sampler.seconds > 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(temperature=-0.1), "temperature is -0.1; it must lie in 0 to 10000"),
        (SamplingParams(temperature=float("nan")), "temperature is nan"),
        (SamplingParams(top_p=1.1), "top_p is 1.1; it must lie in 0 to 1"),
        (SamplingParams(min_p=-0.5), "min_p is -0.5"),
        (SamplingParams(typical=2.0), "typical is 2.0"),
        (SamplingParams(repeat_penalty=0.0), "repeat_penalty is 0.0; it must lie in 0.01 to 100"),
        (SamplingParams(frequency_penalty=float("inf")), "frequency_penalty is inf"),
        (SamplingParams(presence_penalty=float("nan")), "presence_penalty is nan"),
        (SamplingParams(dry_multiplier=float("nan")), "dry_multiplier is nan"),
        (SamplingParams(dry_base=0.5), "dry_base is 0.5; it must lie in 1 to 10000"),
        (SamplingParams(dry_base=float("nan")), "dry_base is nan"),
        (SamplingParams(seed=-1), "seed is -1"),
        (SamplingParams(seed=2**64), "seed is 18446744073709551616"),
        (SamplingParams(logit_bias=((411, 1.0),)), "token 411; the vocabulary ends at 410"),
        (SamplingParams(logit_bias=((-1, 1.0),)), "token -1"),
        (SamplingParams(logit_bias=((5, float("nan")),)), "logit_bias of token 5 is nan"),
        (SamplingParams(logit_bias=((5, float("inf")),)), "logit_bias of token 5 is inf"),
    ],
)
def test_a_value_without_meaning_is_an_error(params: SamplingParams, message: str) -> None:
    with pytest.raises(OptionError) as error:
        params.check(NUM_VOCAB)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
def test_values_with_a_meaning_pass(params: SamplingParams) -> None:
    params.check(NUM_VOCAB)


def test_fresh_seeds_differ() -> None:
    assert len({fresh_seed() for _ in range(20)}) == 20


def test_use_after_close_is_an_error_and_no_crash(model: Model) -> None:
    row = make_row(1)
    sampler = Sampler(model, CASES["everything"], seed=1, prompt=WRITTEN)
    sampler.close()
    sampler.close()
    uses: list[Callable[[], object]] = [
        lambda: sampler.sample(row.ctypes.data, 0),
        lambda: sampler.distribution(row.ctypes.data),
        lambda: sampler.accept([300]),
        lambda: sampler.seconds,
    ]
    for use in uses:
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("params", "calls"),
    [
        (SamplingParams(), 0),
        (SamplingParams(temperature=0.0, logit_bias=((5, 1.0),)), 0),
        (SamplingParams(repeat_penalty=1.1), 1),
        (SamplingParams(temperature=0.0, presence_penalty=0.1), 1),
        (SamplingParams(dry_multiplier=0.5), 1),
    ],
)
def test_a_prompt_is_told_at_once_and_only_to_those_who_remember(
    model: Model, monkeypatch: pytest.MonkeyPatch, params: SamplingParams, calls: int
) -> None:
    told: list[int] = []
    accept = lib.dyspec_sampler_accept

    def counted(address: int, tokens: int, n: int) -> None:
        told.append(n)
        accept(address, tokens, n)

    monkeypatch.setattr(lib, "dyspec_sampler_accept", counted)
    with closing(Sampler(model, params, seed=1, prompt=WRITTEN)):
        assert told == [len(WRITTEN)] * calls
