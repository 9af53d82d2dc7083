"""How the command line reads: values with bounds, headings in --help, the nearest known name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from dyspec_edge.errors import OptionError

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not generic in every version that is allowed

ALL_LAYERS = -1
INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended."""


class GroupedOption(click.Option):
    """An option that is listed under a heading in --help."""

    def __init__(self, *args: Any, heading: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class Command(click.Command):
    """Lists options under headings; suggests the nearest name for an option that does not exist."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section for each heading, in the order of declaration."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                heading = getattr(param, "heading", "Options")
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=34)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses, with click's own suggestions extended to options of one dash."""
        takers = {name: param for param in self.get_params(ctx) for name in param.opts}
        known = [name for name in takers if name.startswith("-")]
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                break
            if arg in known:
                if not getattr(takers[arg], "is_flag", False):
                    next(rest, None)
            # click itself would read "-mdd FILE" as "-m dd FILE", and "-temp 1" as "-t emp 1".
            elif re.match(r"-[a-z]{2}", arg):
                near = nearest(arg.partition("=")[0], known)
                hints = [near] if near else None
                raise click.NoSuchOption(arg, possibilities=hints, ctx=ctx)
        return super().parse_args(ctx, args)


class CommandGroup(click.Group):
    """A group of such commands; suggests the nearest name for a command that does not exist."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command, or suggests the nearest one."""
        if args and args[0] not in self.commands:
            near = nearest(args[0], self.commands)
            hint = f"Did you mean {near}?" if near else f"Commands: {', '.join(self.commands)}."
            raise click.UsageError(f"No such command '{args[0]}'. {hint}", ctx)
        return super().resolve_command(ctx, args)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=0.5)), None)


class Number(_ParamType):
    """A finite float within bounds."""

    name = "N"

    def __init__(self, low: float = -math.inf, high: float = math.inf, *, above: bool = False):
        self._low, self._high, self._above = low, high, above

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The typed text as a value; fails with a line for the user."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        too_low = number <= self._low if self._above else number < self._low
        if not math.isfinite(number) or too_low or number > self._high:
            self.fail(f"{value} is not {self._bounds()}", param, ctx)
        return number

    def _bounds(self) -> str:
        if math.isfinite(self._high):
            return f"between {self._low:g} and {self._high:g}"
        if math.isfinite(self._low):
            return f"{'above' if self._above else 'at least'} {self._low:g}"
        return "a finite number"


class Size(_ParamType):
    """A whole number within bounds; by default the upper one is that of llama.cpp's 32 bits."""

    name = "N"

    def __init__(self, low: int, high: int = 2**31 - 1) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The typed text as a value; fails with a line for the user."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if number < self._low:
            self.fail(f"{number} is not {self._low} or more", param, ctx)
        if number > self._high:
            self.fail(f"{number} is more than {self._high}", param, ctx)
        return number


class Bytes(_ParamType):
    """An amount of memory: 700M, 12G, or a number of bytes; K, M and G are powers of 1024."""

    name = "N[K|M|G]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The typed text as a value; fails with a line for the user."""
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([KMG]?)", str(value).upper())
        number = float(match[1]) * 1024.0 ** " KMG".index(match[2] or " ") if match else 0.0
        if number < 1:
            self.fail(f"{value!r} is not an amount of memory like 700M or 12G", param, ctx)
        return int(number)


class Layers(_ParamType):
    """A number of layers, "auto" (None) or "all"."""

    name = "N|auto|all"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """The typed text as a value; fails with a line for the user."""
        if isinstance(value, int):
            return value
        if value == "auto":
            return None
        if value == "all":
            return ALL_LAYERS
        if not re.fullmatch(r"\d{1,6}", str(value)):
            self.fail(f"{value!r} is not a number of layers, auto or all", param, ctx)
        return int(value)


class Kept(_ParamType):
    """A number of tokens, or "auto" (None)."""

    name = "N|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """The typed text as a value; fails with a line for the user."""
        return None if value == "auto" else Size(1).convert(value, param, ctx)


class Bias(_ParamType):
    """TOKEN_ID+BIAS or TOKEN_ID-BIAS."""

    name = "TOKEN_ID(+/-)BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """The typed text as a value; fails with a line for the user."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,9})([+-])(inf|\d*\.?\d+(?:e-?\d+)?)", str(value))
        if not match or value.endswith("+inf"):
            self.fail(f"{value!r} is not like 15043+1, 15043-1 or 15043-inf", param, ctx)
        return int(match[1]), float(match[2] + match[3])


class Text(_ParamType):
    """Text that is valid UTF-8."""

    name = "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The typed text as a value; fails with a line for the user."""
        try:
            value.encode()
        except UnicodeEncodeError as error:
            self.fail(f"invalid UTF-8 at character {error.start}", param, ctx)
        return str(value)


class JsonObject(_ParamType):
    """A JSON object, as a dictionary."""

    name = "JSON"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        """The typed text as a value; fails with a line for the user."""
        if isinstance(value, dict):
            return value
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f'{value!r} is not a JSON object like {{"name": true}}', param, ctx)
        return found


_ESCAPE = re.compile(rb"\\(?:([nrt'\"\\])|x([0-9a-fA-F]{2}))")
_MEANING = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescape(text: str) -> str:
    r"""Text with \n \r \t \' \" \\ and \xHH (a byte of UTF-8) as what they mean; others stay.

    Raises:
        OptionError: the bytes are not UTF-8.
    """

    def meant(match: re.Match[bytes]) -> bytes:
        if match[2] is not None:
            return bytes.fromhex(match[2].decode())
        return _MEANING.get(match[1], match[1])

    try:
        return _ESCAPE.sub(meant, text.encode()).decode()
    except UnicodeDecodeError as error:
        raise OptionError(
            f"-e makes byte 0x{error.object[error.start]:02x} of {text[:60]!r}, "
            "which is not UTF-8 there"
        ) from None
