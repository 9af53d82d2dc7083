"""Fields that several protocols share: sampling, limits, speculation.

Names and meanings are OpenAI's and llama-server's; a field that is left out or null has the
server's own value, one that nobody knows is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dyspec_edge.engine import SamplingParams
from dyspec_edge.errors import OptionError
from dyspec_edge.server.errors import ApiError

Model = TypeVar("Model", bound=BaseModel)

PLAIN = (
    *("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"),
    *("frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base"),
    *("dry_allowed_length", "dry_penalty_last_n", "ignore_eos", "grammar"),
)
"""Fields that mean what the engine means."""


class Fields(BaseModel):
    """A JSON body; what nobody knows is ignored, null is as good as left out."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class SamplingFields(Fields):
    """How tokens are drawn, and how many."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    logit_bias: dict[str, float | bool] | list[tuple[int | str, float | bool]] | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    seed: int | None = None
    max_tokens: int | None = None
    n_predict: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    policy: str | None = None
    verify: str | None = None
    speculation: bool | str | None = None

    def sampling(
        self, defaults: SamplingParams, tokenize: Callable[[str], list[int]]
    ) -> SamplingParams:
        """The engine's parameters.

        Args:
            defaults: for what is left out.
            tokenize: the ids of a text, for biases that name one.

        Raises:
            ApiError: a bias that names no token.
        """
        given = {name: value for name in PLAIN if (value := getattr(self, name)) is not None}
        if self.typical_p is not None:
            given["typical"] = self.typical_p
        if self.seed is not None:
            given["seed"] = None if self.seed == -1 else self.seed
        if self.logit_bias is not None:
            given["logit_bias"] = _biases(self.logit_bias, tokenize)
        if given.get("grammar") == "":
            given["grammar"] = None
        return replace(defaults, **given)

    def limit(self) -> int | None:
        """Tokens of the reply at most; None for as many as fit."""
        value = self.max_tokens if self.max_tokens is not None else self.n_predict
        return None if value is None or value < 0 else value

    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    def policy_name(self) -> str | None:
        """The policy that is asked for; `speculation: off` is `none`."""
        if self.speculation in (False, "off"):
            return "none"
        if self.speculation not in (None, True, "on"):
            raise ApiError(400, "speculation must be 'on' or 'off'", param="speculation")
        return self.policy


def parsed(kind: type[Model], body: bytes) -> Model:
    """The body as such fields.

    Raises:
        ApiError: 400 that names the first field that is wrong.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise ApiError(400, message, param=where or None) from None


def _biases(
    given: Mapping[str, float | bool] | list[tuple[int | str, float | bool]],
    tokenize: Callable[[str], list[int]],
) -> tuple[tuple[int, float], ...]:
    pairs = given.items() if isinstance(given, Mapping) else given
    found: list[tuple[int, float]] = []
    for name, value in pairs:
        if value is True:
            raise OptionError(f"logit_bias of {name!r} is true; it must be a number or false")
        bias = float("-inf") if value is False else float(value)
        is_id = isinstance(name, int) or (name.isdecimal() and len(name) < 10)
        ids = [int(name)] if is_id else tokenize(str(name))
        found += [(token, bias) for token in ids]
    return tuple(found)
