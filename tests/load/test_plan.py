"""What fits where, with made-up files, memories and devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dyspec_edge.errors import DeviceError, OptionError
from dyspec_edge.files.model_file import FileReport, inspect_file
from dyspec_edge.llama import Device
from dyspec_edge.load.plan import ALL_LAYERS, RESERVE, LoadPlan, plan_load

GB = 10**9
Decide = Callable[..., LoadPlan]


def gpu(free: float, name: str = "RTX") -> Device:
    return Device("CUDA0", name, int(free * GB), int(free * GB))


@pytest.fixture(scope="session")
def reports(tiny_target: Path) -> tuple[FileReport, FileReport]:
    """A target of 33 GB with 32 layers and 100 kB of cache a token; a draft of 1 GB, 10 kB."""
    tiny = inspect_file(tiny_target)
    target = replace(
        tiny,
        path=Path("big.gguf"),
        weights_bytes=33 * GB,
        num_layers=32,
        num_heads=64,
        num_kv_values=50_000,
        num_ctx_train=32768,
    )
    draft = replace(
        target,
        path=Path("small.gguf"),
        weights_bytes=GB,
        num_layers=16,
        num_kv_values=5_000,
    )
    return target, draft


@pytest.fixture
def decide(reports: tuple[FileReport, FileReport]) -> Decide:
    """`plan_load` for the pair above on a machine with enough memory."""

    def decide(
        devices: Sequence[Device] = (), *, with_draft: bool = True, **changes: Any
    ) -> LoadPlan:
        target, draft = reports
        values: dict[str, Any] = {
            "memory": 128 * GB,
            "cache_types": ("f16", "f16"),
            "cache_types_draft": ("f16", "f16"),
            "num_ctx": 4096,
            "num_ctx_draft": None,
            "layers": None,
            "layers_draft": None,
            "flash_attn": "auto",
            "gpu_build": bool(devices),
        }
        values.update(changes)
        return plan_load(target, draft if with_draft else None, devices, **values)

    return decide


# Contexts


def test_several_conversations_share_the_memory(decide: Decide) -> None:
    one = decide(num_ctx=0, memory=16 * GB)
    with pytest.raises(DeviceError, match="does not fit") as caught:
        decide(num_ctx=0, num_conversations=64, memory=16 * GB)
    fits = int(str(caught.value).split("-c ")[1].split()[0])
    assert decide(num_ctx=fits, num_conversations=64, memory=16 * GB).num_ctx == fits < one.num_ctx


def test_the_default_context_is_capped(decide: Decide) -> None:
    plan = decide(num_ctx=None)
    assert plan.num_ctx == 8192
    assert plan.notices == ("context: 8192 tokens of 32768 trained; -c changes it",)


def test_the_default_context_is_what_fits(decide: Decide) -> None:
    # Weights with their repacked copies, the reserve, and 3000 tokens of both caches.
    memory = int(34 * GB * 1.6) + RESERVE + 3000 * 110_000
    plan = decide(num_ctx=None, memory=memory)
    assert plan.num_ctx == 3000 // 256 * 256
    assert "(what fits in memory)" in plan.notices[0]
    assert decide(num_ctx=None, memory=memory, with_draft=False).num_ctx == 8192


def test_a_short_draft_context_leaves_room_for_the_targets(decide: Decide) -> None:
    memory = int(34 * GB * 1.6) + RESERVE + 3000 * 110_000
    plan = decide(num_ctx=None, num_ctx_draft=1000, memory=memory)
    assert (plan.num_ctx, plan.num_ctx_draft) == (3072, 1000)  # 330 MB less 10 for the draft
    assert decide(num_ctx=None, num_ctx_draft=5000, memory=memory).num_ctx == 3000 // 256 * 256


def test_a_draft_has_no_more_context_than_the_target_or_its_own_training(decide: Decide) -> None:
    assert decide(num_ctx_draft=None).num_ctx_draft == 4096
    assert decide(num_ctx_draft=8000).num_ctx_draft == 4096
    assert decide(num_ctx=40000, num_ctx_draft=0).num_ctx_draft == 32768


def test_the_training_length_is_asked_for_with_0(decide: Decide) -> None:
    plan = decide(num_ctx=0)
    assert (plan.num_ctx, plan.notices) == (32768, ())


def test_more_than_the_training_length_is_said(decide: Decide) -> None:
    plan = decide(num_ctx=40000)
    assert plan.num_ctx == 40000
    assert plan.notices == ("context: 40000 tokens, but the model was trained with 32768",)


@pytest.mark.parametrize("asked", [10_000_000, 0])
def test_a_context_that_does_not_fit_names_one_that_does(decide: Decide, asked: int) -> None:
    memory = int(34 * GB * 1.6) + RESERVE + 10_000 * 110_000
    with pytest.raises(DeviceError) as caught:
        decide(num_ctx=asked, memory=memory)
    message = str(caught.value)
    assert f"a context of {asked or 32768} tokens does not fit" in message
    assert "big.gguf" in message
    fitting = int(message.split("-c ")[1].split()[0])
    assert fitting == 10_000 // 256 * 256
    assert decide(num_ctx=fitting, memory=memory).num_ctx == fitting
    with pytest.raises(DeviceError):
        decide(num_ctx=fitting + 1, memory=memory)


def test_a_negative_context_is_refused(decide: Decide) -> None:
    with pytest.raises(OptionError, match="context of -1 tokens"):
        decide(num_ctx=-1)


def test_smaller_cache_types_leave_room_for_more(decide: Decide) -> None:
    memory = int(34 * GB * 1.6) + RESERVE + 3000 * 110_000

    def tokens(kind: str, kind_draft: str) -> int:
        types = {"cache_types": (kind, kind), "cache_types_draft": (kind_draft, kind_draft)}
        return decide(num_ctx=None, memory=memory, **types).num_ctx

    wide, narrow = tokens("f32", "f32"), tokens("q8_0", "q8_0")
    assert narrow > tokens("q8_0", "f16") > wide
    assert wide == 1500 // 256 * 256
    assert narrow == int(3000 * 2 / (34 / 32)) // 256 * 256


def test_a_target_larger_than_memory_is_streamed_in_what_the_rest_leaves(decide: Decide) -> None:
    plan = decide(memory=16 * GB)
    assert plan.streamed
    assert plan.flash_attn == "on"  # scores would take memory from the weights
    alone = decide(memory=16 * GB, with_draft=False)
    caches = 4096 * (100_000 + 10_000)
    assert 14 * GB - caches < plan.room < 15 * GB - caches
    assert 1 * GB < alone.room - plan.room < 1.2 * GB
    assert decide(memory=16 * GB, num_ctx=8192).room < plan.room - caches
    assert not decide(memory=64 * GB).streamed
    assert not decide([gpu(40)], memory=16 * GB).streamed


def test_a_pair_is_streamed_where_target_and_draft_do_not_fit_together(decide: Decide) -> None:
    assert not decide(memory=34 * GB, num_ctx=512, with_draft=False).streamed
    assert decide(memory=34 * GB, num_ctx=512).streamed
    assert decide(memory=10 * GB, num_ctx=1024).room > 0
    assert decide(memory=GB, num_ctx=512).room == decide(memory=2 * GB, num_ctx=512).room - GB < 0


def test_what_is_no_weight_has_to_fit(decide: Decide) -> None:
    with pytest.raises(DeviceError, match=r"^\d+ MiB are free, and caches.* -c"):
        decide(memory=200 << 20, num_ctx=512)


def test_logits_of_the_largest_passes_have_room_beside_streamed_weights(
    reports: tuple[FileReport, FileReport],
) -> None:
    """They are computed and then kept: 64 rows of the target and 128 of the draft, both twice."""

    def room(num_vocab: int) -> int:
        target, draft = (replace(report, num_vocab=num_vocab) for report in reports)
        return plan_load(
            target,
            draft,
            (),
            memory=16 * GB,
            cache_types=("f16", "f16"),
            cache_types_draft=("f16", "f16"),
            num_ctx=512,
            num_ctx_draft=None,
            layers=None,
            layers_draft=None,
            flash_attn="on",
            gpu_build=False,
        ).room

    million = 10**6  # so that logits outgrow all else that is computed
    assert room(million) - room(2 * million) == million * 4 * 2 * (64 + 128)


def test_streaming_can_be_asked_for_without_a_gpu(decide: Decide) -> None:
    assert decide(stream="on").streamed
    assert not decide([gpu(40)], stream="on").streamed


# Devices


def test_without_a_gpu_nothing_is_offloaded(decide: Decide) -> None:
    plan = decide()
    assert (plan.layers, plan.layers_draft, plan.notices) == (0, 0, ())


@pytest.mark.parametrize("asked", [(99, None), (None, 99), (-1, -1)])
@pytest.mark.parametrize(
    ("gpu_build", "cause"), [(False, "built without GPU support"), (True, "no GPU was found")]
)
def test_layers_without_a_gpu_are_one_warning(
    decide: Decide, asked: tuple[int | None, int | None], gpu_build: bool, cause: str
) -> None:
    plan = decide(layers=asked[0], layers_draft=asked[1], gpu_build=gpu_build)
    (line,) = plan.notices
    assert "-ngl has no effect" in line
    assert cause in line
    assert "README" in line
    assert (plan.layers, plan.layers_draft) == (0, 0)
    assert decide(layers=0, layers_draft=0, gpu_build=gpu_build).notices == ()


def test_a_gpu_with_room_takes_both_whole(decide: Decide) -> None:
    plan = decide([gpu(80, "H100")])
    assert (plan.layers, plan.layers_draft) == (ALL_LAYERS, ALL_LAYERS)
    assert plan.notices == ("H100: target layers all, draft all",)


def test_the_draft_goes_first_then_the_layers_that_fit(decide: Decide) -> None:
    plan = decide([gpu(20)])
    free = 0.9 * 20 * GB - RESERVE - (GB + 4096 * 10_000)
    per_layer = (33 * GB + 4096 * 100_000) / 33
    assert plan.layers_draft == ALL_LAYERS
    assert plan.layers * per_layer <= free < (plan.layers + 1) * per_layer
    assert 0 < plan.layers < 32
    alone = decide([gpu(20)], with_draft=False)
    assert alone.layers >= plan.layers
    assert (alone.layers_draft, alone.notices) == (0, (f"RTX: target layers {alone.layers}",))


def test_a_draft_that_does_not_fit_stays_on_the_cpu_and_is_named(decide: Decide) -> None:
    plan = decide([gpu(1.5)])
    assert plan.layers_draft == 0
    assert plan.layers == 0
    assert "small.gguf does not fit on the GPU and stays on the CPU" in plan.notices


def test_layers_that_were_asked_for_are_kept(decide: Decide) -> None:
    plan = decide([gpu(20)], layers=7, layers_draft=0)
    assert (plan.layers, plan.layers_draft) == (7, 0)
    assert "small.gguf does not fit" not in "".join(plan.notices)
    part = decide([gpu(20)], layers_draft=8)
    assert part.layers_draft == 8
    assert part.layers >= decide([gpu(20)]).layers
    whole = decide([gpu(1.5)], layers=-1, layers_draft=-1)
    assert (whole.layers, whole.layers_draft) == (-1, -1)


def test_several_gpus_count_together(decide: Decide) -> None:
    plan = decide([gpu(12, "A"), gpu(12, "B")])
    assert plan.layers > decide([gpu(20)]).layers
    assert plan.notices[-1].startswith("A, B: ")


# Flash attention


def test_on_a_cpu_flash_attention_is_off_where_the_scores_fit(decide: Decide) -> None:
    plan = decide()
    assert (plan.flash_attn, plan.flash_attn_draft) == ("off", "off")
    # 64 heads, 4096 cells, batches of 512, float32, for both models.
    scores = 2 * 64 * 4096 * 512 * 4
    memory = int(34 * GB * 1.6) + 4096 * 110_000 + scores
    assert decide(memory=memory + 1000).flash_attn == "off"
    assert decide(memory=memory - 1000).flash_attn == "on"
    assert decide(memory=memory - 1000, with_draft=False).flash_attn == "off"


def test_scores_that_are_large_beside_the_weights_are_not_made(decide: Decide) -> None:
    # 64 heads: 128 KiB a token of context, against 33 GB of weights.
    limit = (RESERVE + 33 * GB // 8) // (128 << 10)
    alone = {"with_draft": False, "memory": 512 * GB}
    assert decide(num_ctx=limit, **alone).flash_attn == "off"
    assert decide(num_ctx=limit + 1, **alone).flash_attn == "on"


def test_a_quantised_cache_and_a_gpu_keep_flash_attention(decide: Decide) -> None:
    assert decide(cache_types=("f16", "q8_0")).flash_attn == "on"
    assert decide(cache_types=("q8_0", "f16")).flash_attn == "off"
    assert decide(cache_types_draft=("f16", "q8_0")).flash_attn == "on"
    assert decide(cache_types_draft=("q8_0", "f16")).flash_attn == "off"
    assert decide(flash_attn="on").flash_attn == "on"
    plan = decide([gpu(2)])  # the draft alone fits
    assert (plan.layers, plan.layers_draft) == (0, ALL_LAYERS)
    assert (plan.flash_attn, plan.flash_attn_draft) == ("off", "auto")
