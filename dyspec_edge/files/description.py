"""What `dyspec-edge inspect` says of model files, as text for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dyspec_edge.files.model_file import FileReport, inspect_file
from dyspec_edge.files.pair import compare


def describe(paths: Sequence[Path]) -> str:
    """Plain text for people: each file, and each later file as a draft for the first.

    Raises:
        ModelFileError: a file is missing, broken or no GGUF.
    """
    reports = [inspect_file(Path(path), any_kind=True) for path in paths]
    blocks = [_describe_file(report) for report in reports]
    blocks += [_describe_pair(reports[0], draft) for draft in reports[1:]]
    return "\n\n".join(blocks)


def as_dict(paths: Sequence[Path]) -> dict[str, Any]:
    """What `describe` says, for JSON: {"files": [...], "pairs": [...]}.

    Raises:
        ModelFileError: a file is missing, broken or no GGUF.
    """
    reports = [inspect_file(Path(path), any_kind=True) for path in paths]
    return {
        "files": [report.as_dict() for report in reports],
        "pairs": [compare(reports[0], draft).as_dict() for draft in reports[1:]],
    }


def _describe_file(report: FileReport) -> str:
    lines: list[tuple[str, str]] = [("name", report.name or "not given")]
    layers = f", {report.num_layers} layers" if report.num_layers else ""
    lines.append(("kind", f"{report.kind}, architecture {report.architecture}{layers}"))
    shards = f", {report.num_shards} shards" if report.num_shards > 1 else ""
    lines.append(
        (
            "weights",
            f"{report.quantization}, {_number(report.parameters)} parameters, "
            f"{_size(report.weights_bytes)}{shards}",
        )
    )
    if report.num_ctx_train:
        window = f", sliding window {report.sliding_window:,}" if report.sliding_window else ""
        lines.append(("context", f"{report.num_ctx_train:,} tokens{window}"))
    if report.num_vocab:
        cut = f" of {report.trimmed.size:,}" if report.trimmed is not None else ""
        lines.append(("vocabulary", f"{report.num_vocab:,}{cut} tokens, {_tokenizer(report)}"))
        lines.append(("special ids", _special_ids(report)))
        lines.append(("chat template", "yes" if report.chat_template else "none in the file"))
    if report.obstacle:
        lines.append(("cannot run", report.obstacle))
    elif report.kind in ("recurrent", "hybrid"):
        lines.append(("speculation", _state(report)))
    if report.num_head_layers:
        lines.append(("head", _head(report)))
    return "\n".join([str(report.path), *(f"  {key:<14} {value}" for key, value in lines)])


def _describe_pair(target: FileReport, draft: FileReport) -> str:
    pair = compare(target, draft)
    verdict = "can be a pair" if pair.compatible else "cannot be a pair"
    return "\n".join(
        [
            f"target {target.path.name}, draft {draft.path.name}: {verdict}",
            f"  {pair.summary()}",
            *(f"  note: {note}" for note in pair.notes),
        ]
    )


def _head(report: FileReport) -> str:
    layers = f"{report.num_head_layers} layer{'s' * (report.num_head_layers > 1)}"
    if report.has_head:
        return f"multi-token prediction, {layers}: drafts where no other draft is named (-md mtp)"
    return f"multi-token prediction, {layers}: cannot draft here"


def _state(report: FileReport) -> str:
    size = f"its state takes {_size(report.state_bytes)} a text"
    if report.state == "snapshots":
        return f"chains, no trees: {size}, and as much again for each token that can be taken back"
    if report.state == "saved":
        return f"chains, no trees: {size}, copied in each step; what a refusal keeps is read again"
    return f"none: this kind of model is decoded plainly; {size}"


def _tokenizer(report: FileReport) -> str:
    return (
        f"{report.tokenizer} ({report.pre_tokenizer})"
        if report.pre_tokenizer
        else (report.tokenizer)
    )


def _special_ids(report: FileReport) -> str:
    named = (("bos", report.bos_id), ("eos", report.eos_id), ("eot", report.eot_id))
    parts = [
        f"{name} {token} {report.token_text(token)!r}" for name, token in named if token is not None
    ]
    added = {True: "bos is added", False: "bos is not added", None: "bos by the tokenizer's rule"}
    return ", ".join([*parts, added[report.add_bos]])


def _number(value: float) -> str:
    for unit in ("", " K", " M"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g} B"


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"
