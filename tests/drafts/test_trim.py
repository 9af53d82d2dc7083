"""Trimmed drafts: rows as they were, tokens renumbered, one-line errors for what does not fit."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from dyspec_edge.cli.main import cli
from dyspec_edge.drafts import kept_size, kept_tokens
from dyspec_edge.drafts.trim import require_whole, trim
from dyspec_edge.errors import ModelFileError, OptionError, VocabularyError
from dyspec_edge.files.model_file import inspect_file
from dyspec_edge.files.pair import compare, require_pair, require_target
from dyspec_edge.files.trimmed import TARGET_IDS, TARGET_SIZE
from dyspec_edge.llama import Model
from dyspec_edge.load.spelling import Speller
from tests import tiny
from tests.conftest import TinyPair
from tests.drafts.trimming import KEPT, LOST, trimmed

Change = Callable[[GGUFWriter], None]

BYTES = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ"]
TEXTS = [*BYTES, "th", "the", "Ġthe", "an", "and", "Ġand", "<|end|>", "<|pad|>"]
MERGES = ["t h", "th e", "Ġ the", "a n", "an d", "Ġ and"]
KINDS = [1] * (len(TEXTS) - 2) + [3, 5]


def write_quantized(path: Path, kind: GGMLQuantizationType, more: Change = lambda _w: None) -> Path:
    """A file of a byte-level tokenizer with tensors of a type; no model that runs."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(256)
    writer.add_head_count(1)
    writer.add_vocab_size(len(TEXTS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TEXTS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(TEXTS.index("<|end|>"))
    writer.add_uint32("tokenizer.ggml.unknown_token_id", 0xFFFFFFFF)
    more(writer)
    rows = np.random.default_rng(1).standard_normal((len(TEXTS), 256), np.float32)
    for name in ("token_embd.weight", "output.weight", "blk.0.ffn_up.weight"):
        writer.add_tensor(name, quants.quantize(rows, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(256, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "kind",
    [
        GGMLQuantizationType.F32,
        GGMLQuantizationType.F16,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q5_0,
        GGMLQuantizationType.Q4_1,
    ],
)
def test_rows_are_cut_as_they_are(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    path = write_quantized(tmp_path / "draft.gguf", kind)
    kept = np.array([*range(len(BYTES)), TEXTS.index("the"), TEXTS.index("and"), len(TEXTS) - 2])
    whole = GGUFReader(path)
    cut = GGUFReader(trimmed(path, tmp_path / "out.gguf", kept.astype(np.int32)))
    for before, after in zip(whole.tensors, cut.tensors, strict=True):
        assert (before.name, before.tensor_type) == (after.name, after.tensor_type)
        has_rows = before.name in ("token_embd.weight", "output.weight")
        assert np.array_equal(before.data[kept] if has_rows else before.data, after.data)

    def field(name: str) -> Any:
        return cut.fields[name].contents()

    assert field("tokenizer.ggml.tokens") == [TEXTS[token] for token in kept]
    assert field("tokenizer.ggml.token_type") == [KINDS[token] for token in kept]
    assert field("tokenizer.ggml.merges") == ["th e", "an d"]
    assert field("tokenizer.ggml.eos_token_id") == len(kept) - 1
    assert field("tokenizer.ggml.unknown_token_id") == 0xFFFFFFFF
    assert field("llama.vocab_size") == len(kept)
    assert field(TARGET_IDS) == kept.tolist()
    assert field(TARGET_SIZE) == len(TEXTS)


def test_rows_of_types_that_only_llama_cpp_can_make_are_cut(tmp_path: Path) -> None:
    """The same blocks of bytes: 256 values of Q4_K are 144 of them."""
    rows = np.random.default_rng(2).integers(0, 255, (len(TEXTS), 144), np.uint8)
    kind = GGMLQuantizationType.Q4_K

    def more(writer: GGUFWriter) -> None:
        writer.add_tensor("output.bias", np.arange(len(TEXTS), dtype=np.float32))
        writer.add_tensor("per_layer_token_embd.weight", rows, raw_dtype=kind)

    path = write_quantized(tmp_path / "draft.gguf", GGMLQuantizationType.F32, more)
    kept = np.arange(0, len(TEXTS), 2, dtype=np.int32)
    cut = {t.name: t for t in GGUFReader(trimmed(path, tmp_path / "out.gguf", kept)).tensors}
    assert cut["output.bias"].data.tolist() == kept.tolist()
    assert cut["per_layer_token_embd.weight"].tensor_type == kind
    assert np.array_equal(cut["per_layer_token_embd.weight"].data, rows[kept])


def test_frequent_tokens_are_kept_then_low_ids_and_always_bytes_and_special_ones(
    tmp_path: Path,
) -> None:
    report = inspect_file(write_quantized(tmp_path / "draft.gguf", GGMLQuantizationType.F32))
    always = [*range(len(BYTES)), TEXTS.index("<|end|>")]

    def more(num: int, counts: dict[str, int]) -> list[str]:
        found = Counter({TEXTS.index(text): count for text, count in counts.items()})
        kept = kept_tokens.choose(report, len(always) + num, found).tolist()
        assert set(always) <= set(kept)
        assert kept == sorted(set(kept))
        return [TEXTS[token] for token in kept if token not in always]

    assert more(0, {"and": 5}) == []
    assert more(2, {}) == ["th", "the"]
    assert more(3, {"and": 5, "Ġthe": 9, "<|pad|>": 3}) == ["th", "Ġthe", "and"]
    assert more(7, {}) == ["th", "the", "Ġthe", "an", "and", "Ġand", "<|pad|>"]
    for num in (len(always) - 1, len(TEXTS) + 1):
        with pytest.raises(OptionError, match=r"always kept"):
            kept_tokens.choose(report, num, Counter())


def test_the_words_of_the_chat_template_are_kept(tmp_path: Path) -> None:
    """Whatever the corpus: they stand before every reply."""
    report = inspect_file(write_quantized(tmp_path / "draft.gguf", GGMLQuantizationType.F32))
    _, num_bytes = kept_tokens.ranked(report, Counter())
    report = replace(report, chat_template="{{ '\\nand\\n' }}")
    order, num_always = kept_tokens.ranked(report, Counter({TEXTS.index("the"): 9}))
    always = {TEXTS[token] for token in order[:num_always]}
    assert {"and", "Ġand"} <= always
    assert num_always == num_bytes + 2


def test_a_corpus_does_not_push_out_the_words_of_other_text() -> None:
    """What it has once in a million counts less than a low id, what it often has more."""
    corpus = Counter({100: 900_000, 90_000: 100_000})
    corpus.update(dict.fromkeys(range(60_000, 80_000), 1))
    expected = kept_tokens.frequencies(corpus, 100_000)
    assert expected[90_000] > expected[3_000] > expected[20_000] > expected[70_000]
    assert expected.sum() == pytest.approx(1, abs=0.02)
    by_id = kept_tokens.by_id(100_000)
    assert (kept_tokens.frequencies(Counter(), 100_000) == by_id).all()
    assert (np.diff(by_id) < 0).all()
    half = kept_tokens.TYPICAL_RANK
    assert by_id[:half].sum() == pytest.approx(by_id[half:].sum(), rel=0.05)


def test_as_many_tokens_are_kept_as_pay_for_their_rows() -> None:
    order = np.arange(40_960, dtype=np.int32)
    always = kept_size.STEP
    # Three quarters of the text are 4,096 tokens, a quarter is spread over the others.
    text = np.array([30.0] * 4096 + [1.0] * 36864)
    sizes = [kept_size.best_size(order, always, text, share) for share in (0.0, 0.2, 0.5, 0.9)]
    assert sizes[0] == 40_960, "rows that cost nothing stay"
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 40_960
    assert all(size % kept_size.STEP == 0 for size in sizes)
    few = np.array([30.0] * 100 + [0.0] * 40860)
    assert kept_size.best_size(order, always, few, 0.5) == always, "the rest is never needed"


def test_the_output_layer_is_a_share_of_a_pass(tiny_pair: TinyPair) -> None:
    with Model(tiny_pair.draft) as model:
        assert 0 <= kept_size.output_share(model, 1) < 1


def test_a_trimmed_model_says_what_the_whole_one_says(tiny_pair: TinyPair, tmp_path: Path) -> None:
    path = trimmed(tiny_pair.draft, tmp_path / "out.gguf")
    with Model(path) as cut, Model(tiny_pair.draft) as whole:
        assert [cut.piece(i) for i in range(len(KEPT))] == [whole.piece(int(i)) for i in KEPT]
        assert [int(KEPT[t]) for t in cut.end_tokens] == whole.end_tokens.tolist()
        text = "it was the tree"
        own = cut.tokenize(text, add_special=True, parse_special=False)
        assert b"".join(cut.piece(t) for t in own).strip() == text.encode()
        spell = Speller(whole, cut, 0)
        for token in LOST:
            assert b"".join(cut.piece(t) for t in spell(int(token))) == whole.piece(int(token))


def test_pairs_that_fit_and_those_that_do_not(tiny_pair: TinyPair, tmp_path: Path) -> None:
    target = inspect_file(tiny_pair.target)
    cut = inspect_file(trimmed(tiny_pair.draft, tmp_path / "out.gguf"))
    pair = require_pair(target, cut)
    assert pair.target_ids is not None
    assert pair.target_ids.tolist() == KEPT.tolist()
    assert pair.notes == ("the chat templates differ; the target's is used",) or not pair.notes
    assert f"trimmed to {len(KEPT)} tokens" in pair.summary()
    assert cut.as_dict()["trimmed_from"] == len(tiny.VOCABULARY)
    require_target(target)
    with pytest.raises(ModelFileError, match=r"cannot be a target; name it with -md"):
        require_target(cut)
    assert "cannot be a target" in str(compare(cut, target).reason)
    other = tiny.write_model(tmp_path / "other.gguf", vocabulary=tiny.OTHER_VOCABULARY)
    with pytest.raises(VocabularyError, match=r"trimmed from another one than the target's") as no:
        require_pair(inspect_file(other), cut)
    assert "\n" not in str(no.value)
    with pytest.raises(ModelFileError, match=r"trimmed already"):
        require_whole(cut)


def test_renamed_tokens_are_never_drafted(tiny_pair: TinyPair, tmp_path: Path) -> None:
    token = int(KEPT[300])
    renamed = tiny.write_model(
        tmp_path / "renamed.gguf", vocabulary=tiny.VOCABULARY.renamed(token, "<|other|>")
    )
    cut = trimmed(tiny_pair.draft, tmp_path / "out.gguf")
    pair = require_pair(inspect_file(renamed), inspect_file(cut))
    assert pair.target_ids is not None
    assert pair.target_ids[300] == -1
    assert pair.excluded_ids == (token,)


def test_ids_beyond_a_shorter_target_are_never_drafted(tiny_pair: TinyPair, tmp_path: Path) -> None:
    short = tiny.write_model(tmp_path / "short.gguf", vocabulary=tiny.VOCABULARY.shortened(8))
    cut = trimmed(tiny_pair.draft, tmp_path / "out.gguf")
    pair = require_pair(inspect_file(short), inspect_file(cut))
    assert pair.target_ids is not None
    assert (pair.target_ids == -1).sum() == 8


def ids(writer: GGUFWriter, values: Any, size: int | None = 99) -> None:
    writer.add_array(TARGET_IDS, values)
    if size is not None:
        writer.add_uint32(TARGET_SIZE, size)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (lambda w: ids(w, [1, 2, 3]), "has 3 ids for 36 tokens"),
        (lambda w: ids(w, list(range(36)), None), f"lacks {TARGET_SIZE}"),
        (lambda w: ids(w, list(range(64, 100))), "has ids beyond the 99 tokens"),
        (lambda w: ids(w, [*range(35), 3]), "does not ascend"),
        (lambda w: ids(w, ["a"] * 36), "is no array of numbers"),
    ],
)
def test_broken_maps_are_refused(tmp_path: Path, more: Change, words: str) -> None:
    path = write_quantized(tmp_path / "draft.gguf", GGMLQuantizationType.F32, more)
    with pytest.raises(ModelFileError, match=words) as error:
        inspect_file(path)
    assert "draft trim" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_quantized(tmp_path / "draft.gguf", GGMLQuantizationType.F32)
    out = tmp_path / "out.gguf"
    out.write_bytes(b"older")

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    kept = np.arange(len(TEXTS), dtype=np.int32)
    with pytest.raises(ModelFileError, match="cannot be written: No space left on device"):
        trim(inspect_file(path), kept, out, lambda _done: None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draft.gguf", "out.gguf"]
    assert out.read_bytes() == b"older"
    with pytest.raises(ModelFileError, match="is the draft itself"):
        trim(inspect_file(path), kept, path, lambda _done: None)


def test_the_command_counts_a_corpus(
    tiny_pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out.gguf"
    corpus.write_text("the tree and the leaf " * 50)
    keep = len(tiny.VOCABULARY) - len(LOST)
    typed = ["draft", "trim", str(tiny_pair.draft), "-o", str(out), "--keep"]
    result = CliRunner().invoke(cli, [*typed, str(keep), "--corpus", str(corpus)])
    assert result.exit_code == 0
    assert f"{keep} of {len(tiny.VOCABULARY)} tokens" in result.output
    assert "100.00% of the corpus" in result.output
    texts = [text.decode() for text in inspect_file(out).tokens]
    assert {"\u2581the", "\u2581tree", "\u2581leaf"} <= set(texts)
    automatic = CliRunner().invoke(cli, [*typed, "auto", "--corpus", str(corpus)])
    assert automatic.exit_code == 0, automatic.output
    assert "of a pass of" in automatic.output
    assert inspect_file(out).num_vocab <= len(tiny.VOCABULARY)
    alone = CliRunner().invoke(cli, [*typed, "auto"])
    assert alone.exit_code == 0, alone.output
    chosen = mock.Mock(return_value=keep)
    monkeypatch.setattr(kept_size, "best_size", chosen)
    CliRunner().invoke(cli, [*typed, "auto", "--corpus", str(corpus)])
    expected = chosen.call_args.args[2]
    assert (expected == kept_tokens.by_id(len(tiny.VOCABULARY))).all(), "of any text"
    for end, words in (
        (["9", "--corpus", str(corpus)], "are always kept"),
        (["300", "--corpus", "nowhere"], "--corpus nowhere: No such file"),
    ):
        failed = CliRunner().invoke(cli, [*typed, *end])
        assert failed.exit_code == 2
        assert words in failed.output
        assert failed.output.strip().count("\n") == 0
