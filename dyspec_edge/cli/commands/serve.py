"""`dyspec-edge serve`: the models for programs, over HTTP, and the page."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dyspec_edge.cli import background, model_choice, options
from dyspec_edge.cli.syntax import Command
from dyspec_edge.cli.terminal import Bar, Terminal
from dyspec_edge.errors import OptionError

if TYPE_CHECKING:
    from dyspec_edge.server.run import ServerConfig


@click.command(cls=Command)
@options.server_options
def serve(**typed: Any) -> int:
    """Answer programs over HTTP (OpenAI's protocol and others), and show the page at /.

    Only this machine can reach it, unless --host says otherwise.
    """
    terminal = Terminal()
    config = model_choice.engine_config(typed, terminal)
    from dyspec_edge.load.loading import load
    from dyspec_edge.server import run

    settings = _settings(typed, config.model)
    with closing(run.listen(settings.rules.host, settings.port)) as bound:
        with Bar(terminal) as bar:
            loaded = background.run(lambda tell: load(config, tell), bar)
        with run.opened(loaded, settings) as service:
            for line in service.slots.notices:
                terminal.notice(line)
            if not settings.rules.keys and typed["host"] not in ("127.0.0.1", "localhost", "::1"):
                terminal.notice("no --api-key: whoever reaches this address may use the model")
            terminal.notice(f"listening on {run.address_of(bound)} (Ctrl-C ends it)")
            _log_to_stderr()
            run.serve(service, settings, bound)
    return 0


def _settings(typed: Mapping[str, Any], model: Path) -> ServerConfig:
    from dyspec_edge.server.guard import Rules
    from dyspec_edge.server.run import ServerConfig
    from dyspec_edge.server.service import Limits

    return ServerConfig(
        model=typed["alias"] or model.stem,
        rules=Rules(
            keys=_keys(typed),
            host=typed["host"],
            origins=tuple(origin.rstrip("/") for origin in typed["cors_origin"]),
            max_body=typed["max_body"],
        ),
        limits=Limits(
            max_tokens=None if typed["predict"] < 0 else typed["predict"],
            max_prompt=typed["max_prompt"],
        ),
        sampling=options.sampling_params(typed),
        timeout=typed["timeout"],
        port=typed["port"],
        cache_ram=_cache_ram(typed["cache_ram"]),
        log_content=typed["log_content"],
    )


def _cache_ram(mebibytes: int | None) -> int | None:
    return sys.maxsize if mebibytes == -1 else None if mebibytes is None else mebibytes << 20


def _keys(typed: Mapping[str, Any]) -> tuple[str, ...]:
    """What --api-key says, and the lines of --api-key-file."""
    keys = list(typed["api_key"])
    if typed["api_key_file"] is not None:
        try:
            text = typed["api_key_file"].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--api-key-file: cannot read it: {error}") from None
        keys += text.split()
        if not keys:
            raise OptionError("--api-key-file: it holds no key")
    if not all(key.isascii() and key.strip() == key and key for key in keys):
        raise OptionError("an API key must be ASCII text without spaces around it")
    return tuple(keys)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in ("dyspec_edge.server", "uvicorn"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
    logging.getLogger("dyspec_edge.server").setLevel(logging.INFO)
