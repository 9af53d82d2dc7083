"""What to load and how: the options of an engine, before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dyspec_edge import llama
from dyspec_edge.decode.policy import parse
from dyspec_edge.errors import OptionError

MAX_THREADS = 512
"""ggml's own limit; it crashes far above."""


HEAD, SELF, NO_DRAFT = Path("mtp"), Path("self"), Path("none")
"""What may stand in place of a draft's file: the head in the target's own, a copy of the target in
fewer bits, and nothing."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What to load and how; in brackets the command line's option of the same meaning.

    Paths may be given as text.

    Attributes:
        model, draft: GGUF files, of split ones the first shard (-m, -md). The draft may be "mtp",
            the multi-token-prediction head in the target's file, which is also used where there is
            one and no draft is named; "self": a copy of the target in fewer bits, which is made
            at the first load and kept; "none": not even the head.
        num_ctx, num_ctx_draft: usable tokens; None for the default, 0 for the model's own training
            length; a draft never has more than the target (-c, -cd).
        num_conversations: how many can be open at the same time, each of `num_ctx` tokens.
        num_threads: None for the number of physical cores (-t).
        num_gpu_layers, num_gpu_layers_draft: None for what fits, -1 for all (-ngl, -ngld).
        rpc: servers of other machines that take layers of the target, "HOST:PORT" each (--rpc).
        require_gpu: refuse to run without a GPU (--require-gpu).
        flash_attn: "on", "off" or "auto": on a CPU off where memory allows, which is faster there
            (-fa).
        cache_type_k, cache_type_v: a key of llama.CACHE_TYPES (-ctk, -ctv).
        cache_type_k_draft, cache_type_v_draft: the same for the draft; None for the target's
            type, or f16 where that is quantised (-ctkd, -ctvd).
        lora: adapters of the target (--lora).
        memory_limit: bytes that this process is to take at most; None for what is free
            (--memory-limit).
        stream: read weights from disk in every pass: "auto" where they do not fit into memory,
            "on", or "off", which leaves that to the system (--stream).
        policy: None for `priced`; with `residual`, for what passes cost here (--policy).
        verify: "auto", "match" or "residual" (--verify).
        draft_temperature: None for the verifier's own choice (--draft-temp).
        device_sampling: whether candidates are found on the device that holds the draft's logits:
            "on", "off" or "auto", where that is faster (--device-sampling).
        chat_template: Jinja text or a built-in template's name instead of the file's own template
            (--chat-template).
        template_kwargs: variables for the chat template, as enable_thinking
            (--chat-template-kwargs, --reasoning).
        verbose: show llama.cpp's log.
    """

    model: Path
    draft: Path | None = None
    num_ctx: int | None = None
    num_ctx_draft: int | None = None
    num_conversations: int = 1
    num_threads: int | None = None
    num_gpu_layers: int | None = None
    num_gpu_layers_draft: int | None = None
    rpc: tuple[str, ...] = ()
    require_gpu: bool = False
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    cache_type_k_draft: str | None = None
    cache_type_v_draft: str | None = None
    lora: tuple[Path, ...] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    memory_limit: int | None = None
    stream: str = "auto"
    policy: str | None = None
    verify: str = "auto"
    draft_temperature: float | None = None
    device_sampling: str = "auto"
    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    verbose: bool = False

    def __post_init__(self) -> None:
        for name in ("model", "draft"):
            object.__setattr__(self, name, _path(name, getattr(self, name)))
        lora: Any = self.lora
        paths = (lora,) if isinstance(lora, (str, Path)) else lora
        object.__setattr__(self, "lora", tuple(_path("lora", path) for path in paths))

    @property
    def draft_file(self) -> Path | None:
        """The draft's own file, if there is one."""
        return None if self.draft in (HEAD, SELF, NO_DRAFT) else self.draft

    @property
    def cache_types(self) -> tuple[str, str]:
        """Types of the target's keys and values."""
        return self.cache_type_k, self.cache_type_v

    @property
    def cache_types_draft(self) -> tuple[str, str]:
        """Types of the draft's keys and values.

        A quantised cache is the price of a long context; the draft's is small, and its guesses
        suffer first.
        """
        key, value = (t if t in llama.UNQUANTIZED else "f16" for t in self.cache_types)
        return self.cache_type_k_draft or key, self.cache_type_v_draft or value

    def check(self) -> None:
        """Raise OptionError for a value that has no meaning."""
        for name, allowed in (
            ("flash_attn", tuple(llama.FLASH_ATTN)),
            ("cache_type_k", tuple(llama.CACHE_TYPES)),
            ("cache_type_v", tuple(llama.CACHE_TYPES)),
            ("cache_type_k_draft", (*llama.CACHE_TYPES, None)),
            ("cache_type_v_draft", (*llama.CACHE_TYPES, None)),
            ("verify", ("auto", "match", "residual")),
            ("device_sampling", ("auto", "on", "off")),
            ("stream", ("auto", "on", "off")),
        ):
            if getattr(self, name) not in allowed:
                names = ", ".join(value for value in allowed if value is not None)
                raise OptionError(f"{name} is '{getattr(self, name)}'; it must be one of {names}")
        for name in ("cache_type_v", "cache_type_v_draft"):
            value = getattr(self, name)
            if self.flash_attn == "off" and value not in (None, *llama.UNQUANTIZED):
                raise OptionError(
                    f"{name} {value} works with flash attention only; drop -fa off, or use f16"
                )
        for option, tokens in (("-c", self.num_ctx), ("-cd", self.num_ctx_draft)):
            if tokens is not None and tokens < 0:
                raise OptionError(
                    f"a context of {tokens} tokens: {option} must be 0 (training length) or more"
                )
        if self.policy is not None:
            parse(self.policy, np.empty(0, np.int32))  # before anything is loaded
        if self.memory_limit is not None and self.memory_limit < 1:
            raise OptionError(f"--memory-limit is {self.memory_limit}; it must be above 0")
        if self.num_conversations < 1:
            raise OptionError(f"{self.num_conversations} conversations: it must be 1 or more")
        if self.num_threads is not None and not 1 <= self.num_threads <= MAX_THREADS:
            raise OptionError(f"{self.num_threads} threads: -t must be 1 to {MAX_THREADS}")
        if self.draft_temperature is not None and not self.draft_temperature > 0:
            raise OptionError(f"--draft-temp is {self.draft_temperature}; it must be above 0")


def _path(name: str, value: object) -> Path | None:
    if value is None and name == "draft":
        return None
    try:
        return Path(value)  # type: ignore[arg-type]
    except TypeError:
        raise OptionError(f"{name} is {value!r}; it must be the path of a GGUF file") from None
