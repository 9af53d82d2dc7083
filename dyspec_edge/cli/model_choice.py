"""From the model options that were typed to model files on this machine.

-m FILE | -hf USER/REPO[:QUANT] | --pair NAME | nothing: the default pair, if it is there
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dyspec_edge.cli import options
from dyspec_edge.cli.syntax import nearest
from dyspec_edge.cli.terminal import Bar, Terminal
from dyspec_edge.errors import OptionError
from dyspec_edge.files import catalog, stores
from dyspec_edge.files.catalog import ModelSource, Pair

if TYPE_CHECKING:
    from dyspec_edge.engine import EngineConfig
    from dyspec_edge.files.transfer import Progress

DEFAULT_PAIR = "qwen2.5-coder"


def choose(typed: Mapping[str, Any], terminal: Terminal) -> tuple[Path, Path | None]:
    """The files of target and draft; fetches what -hf, -hfd and --pair name.

    Raises:
        OptionError: the options contradict each other, name nothing, or name an unknown pair.
        DownloadError: a file could not be fetched.
    """
    model, draft = typed["model"], typed["model_draft"]
    given = [
        name
        for name, value in (("-m", model), ("-hf", typed["hf_repo"]), ("--pair", typed["pair"]))
        if value is not None
    ]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} each name a target; use one of them")
    if draft is not None and typed["hf_repo_draft"] is not None:
        raise OptionError("-md and -hfd each name a draft; use one of them")
    has_draft = draft is not None or typed["hf_repo_draft"] is not None
    if has_draft and given == ["--pair"]:
        raise OptionError("--pair brings its own draft; leave -md and -hfd out")
    if has_draft and not given:
        raise OptionError("a draft needs a target: add -m FILE or -hf USER/REPO")
    if given == ["--pair"]:
        return fetch_pair(find_pair(typed["pair"]), terminal)
    if not given:
        return _default_pair()
    if typed["hf_repo"] is not None:
        model = _from_hub(typed["hf_repo"], terminal)
    if typed["hf_repo_draft"] is not None:
        draft = _from_hub(typed["hf_repo_draft"], terminal)
    return model, draft


def engine_config(typed: Mapping[str, Any], terminal: Terminal) -> EngineConfig:
    """What to load, from all the model options that were typed; errors as of `choose`."""
    if typed["verbose"]:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    template = options.chat_template(typed["chat_template"])  # before anything is fetched
    target, draft = choose(typed, terminal)
    config = options.engine_config({**typed, "chat_template": template}, target, draft)
    return with_self_copy(config, terminal)


def with_self_copy(config: EngineConfig, terminal: Terminal) -> EngineConfig:
    """The same with a file as its draft where that is "self"; errors as of `self_draft.ensure`.

    Here and not while the engine loads, in a thread: Ctrl-C ends it, and nothing is left behind.
    """
    from dyspec_edge.load import self_draft

    with Bar(terminal, delay=0.3) as bar:
        return self_draft.resolved(config, lambda label, done: bar.update(label, done, 1.0))


def find_pair(name: str) -> Pair:
    """The pair of that name in the catalog.

    Raises:
        OptionError: there is none; the nearest name is suggested.
    """
    pairs = catalog.load()
    if name in pairs:
        return pairs[name]
    near = nearest(name, pairs)
    hint = f"did you mean {near}? " if near else ""
    raise OptionError(f"unknown pair '{name}'; {hint}'dyspec-edge models' lists them")


def fetch_pair(pair: Pair, terminal: Terminal) -> tuple[Path, Path | None]:
    """Both files of a pair; what is missing is fetched, with a bar."""
    target = _ensure(pair.target, terminal)
    return target, None if pair.draft is None else _ensure(pair.draft, terminal)


def is_here(pair: Pair) -> bool:
    """Whether all files of a pair are on this machine."""
    sources = (pair.target, pair.draft)
    return all(source is None or stores.find(source) is not None for source in sources)


def _default_pair() -> tuple[Path, Path | None]:
    pair = find_pair(DEFAULT_PAIR)
    target = stores.find(pair.target)
    draft = None if pair.draft is None else stores.find(pair.draft)
    if target is None or (draft is None and pair.draft is not None):
        raise OptionError(
            f"no model given and the default pair is not here; fetch it with "
            f"'dyspec-edge pull {DEFAULT_PAIR}', or name a file with -m FILE"
        )
    return target, draft


def _ensure(source: ModelSource, terminal: Terminal) -> Path:
    from dyspec_edge.files import fetch

    with Bar(terminal, delay=0.3, in_bytes=True) as bar:
        return fetch.ensure(source, on_progress=_progress_on(bar), on_notice=terminal.notice)


def _from_hub(name: str, terminal: Terminal) -> Path:
    from dyspec_edge.files import fetch

    with Bar(terminal, delay=0.3, in_bytes=True) as bar:
        return fetch.resolve_hf(name, on_progress=_progress_on(bar), on_notice=terminal.notice)


def _progress_on(bar: Bar) -> Callable[[Progress], None]:
    def show(progress: Progress) -> None:
        bar.update(progress.label, progress.done, progress.total)

    return show
