"""Measuring Sequoia's acceptance rates: text is generated with a wide root and nothing below it.

As in the paper's own measurement every step drafts the root's first children alone, and counts
which of them was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from dyspec_edge.decode.policy.sequoia import WIDTH, Acceptance, SequoiaPolicy
from dyspec_edge.engine import Engine, EngineConfig, Message, SamplingParams
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.load import sequoia_rates
from dyspec_edge.load.contexts import Contexts
from dyspec_edge.load.loading import Loaded
from dyspec_edge.load.models import Models, open_models

LLAMA_CPP_DEFAULTS = SamplingParams()


def fit_acceptance(
    config: EngineConfig,
    prompts: Sequence[str | Sequence[Message]],
    *,
    temperatures: Sequence[float] = (LLAMA_CPP_DEFAULTS.temperature,),
    sampling: SamplingParams = LLAMA_CPP_DEFAULTS,
    max_tokens: int = 128,
    on_progress: Callable[[str, float], None] | None = None,
) -> tuple[Acceptance, ...]:
    """Measure how often each child is accepted, and keep it for `sequoia:N` and `sequoia:auto`.

    Args:
        config: the pair and the verifier; its policy is not used.
        prompts: as `Engine.stream` takes them.  Their texts decide the rates: take such as you will
            generate.
        temperatures: a fit is made at each of them.
        sampling: all other options; replies have the seeds 1, 2, ... if it names none.
        max_tokens: of a reply.
        on_progress: called with what is being done and a fraction 0..1.

    Returns:
        The fits, in the order of `temperatures`.

    Raises:
        OptionError: no prompt, no draft or no temperature.
        DyspecError: nothing was generated, or as `Engine.load` and `Engine.stream`.
    """
    if not prompts or not temperatures or config.draft_file is None:
        raise OptionError("measuring acceptance needs a draft, a prompt and a temperature")
    report = on_progress or (lambda _what, _done: None)
    fits = []
    with closing(open_models(replace(config, policy=f"sequoia:{WIDTH}:1"), on_progress)) as models:
        if models.plain_reason is not None:
            raise DyspecError(f"nothing to measure: {models.plain_reason}")
        if models.plan.states.longest_chain is not None:
            raise DyspecError("nothing to measure: a recurrent state cannot branch into trees")
        for at, temperature in enumerate(temperatures):
            params = replace(sampling, temperature=temperature)

            def done(fraction: float, at: int = at) -> None:
                report("measuring acceptance", (at + fraction) / len(temperatures))

            fits.append(_fit(config, models, prompts, params, max_tokens, done))
    verify = "residual" if config.verify == "residual" else "match"
    key = sequoia_rates.rates_key(config.model, config.draft_file, verify, config.draft_temperature)
    sequoia_rates.keep(key, fits)
    return tuple(fits)


def _fit(
    config: EngineConfig,
    models: Models,
    prompts: Sequence[str | Sequence[Message]],
    sampling: SamplingParams,
    max_tokens: int,
    on_progress: Callable[[float], None],
) -> Acceptance:
    policy = SequoiaPolicy(WIDTH, models.target.end_tokens, max_depth=1)
    with closing(Contexts(models, policy, config.verify)) as contexts:
        engine = Engine(config, Loaded(models, contexts, lambda: policy))
        for number, prompt in enumerate(prompts):
            on_progress(number / len(prompts))
            seed = number + 1 if sampling.seed is None else sampling.seed
            engine.generate(prompt, sampling=replace(sampling, seed=seed), max_tokens=max_tokens)
    on_progress(1.0)
    if not policy.num_accepted.any():
        raise DyspecError("no drafted token was accepted: the draft does not suit the target")
    rates = policy.num_accepted / policy.num_steps
    return Acceptance(tuple(rates.tolist()), sampling.temperature, policy.num_steps)
