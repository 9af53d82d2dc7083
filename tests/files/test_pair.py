"""Files that are what they seem, files that are not, and pairs that fit or do not."""

from __future__ import annotations

import json
import os
import re
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter, TokenType

from dyspec_edge.errors import ModelFileError, VocabularyError
from dyspec_edge.files.architecture import kind_of
from dyspec_edge.files.description import as_dict, describe
from dyspec_edge.files.gguf_header import read_header
from dyspec_edge.files.model_file import FileReport, inspect_file
from dyspec_edge.files.pair import compare, require_pair

Write = Callable[[GGUFWriter], None]

WORDS = [f"word{i}" for i in range(300)]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}"


def write_file(
    path: Path,
    tokens: Sequence[str] = WORDS,
    *,
    types: Sequence[int] | None = None,
    architecture: str = "llama",
    tokenizer: str = "gpt2",
    tensors: int = 2,
    layers: int = 3,
    more: Write = lambda _: None,
) -> Path:
    """A GGUF file with a header like a real one and a few weights."""
    writer = GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_context_length(512)
    writer.add_block_count(layers)
    writer.add_embedding_length(8)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre("tiny")
    writer.add_token_list(tokens)
    writer.add_token_types(types or [TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    more(writer)
    for i in range(tensors):
        writer.add_tensor(f"blk.{i}.weight", np.ones((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path: Path) -> str:
    started = time.process_time()
    with pytest.raises(ModelFileError) as error:
        inspect_file(path)
    assert time.process_time() - started < 5
    message = str(error.value)
    assert str(path.parent) in message
    assert "\n" not in message
    return message


# Files that can be run


def test_a_file_is_reported(tmp_path: Path) -> None:
    report = inspect_file(write_file(tmp_path / "m.gguf"))
    assert (report.kind, report.architecture, report.name) == ("causal", "llama", "Tiny")
    assert report.quantization == "F32"
    assert (report.parameters, report.weights_bytes) == (64, 256)
    assert (report.num_ctx_train, report.num_layers, report.num_vocab) == (512, 3, 300)
    assert report.num_kv_values == 3 * 2 * (2 + 2)
    assert (report.tokenizer, report.pre_tokenizer) == ("gpt2", "tiny")
    assert (report.bos_id, report.eos_id, report.eot_id, report.add_bos) == (None, 1, None, False)
    assert report.num_shards == 1
    assert report.file_size == (tmp_path / "m.gguf").stat().st_size
    assert report.obstacle is None
    assert report.token_text(7) == "word7"


def test_the_header_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    def more(writer: GGUFWriter) -> None:
        writer.add_array("x.floats", [0.5, 1.5])
        writer.add_array("x.flags", [True, False])
        writer.add_array("x.texts", ["é", "", "b"])
        writer.add_uint64("x.large", 1 << 40)
        writer.add_int8("x.small", -3)
        writer.add_float64("x.double", 0.1)
        writer.add_custom_alignment(64)

    path = write_file(tmp_path / "m.gguf", more=more)
    header, reference = read_header(path), GGUFReader(path)
    for key, value in header.fields.items():
        if key == "tokenizer.ggml.merges":
            continue
        expected = reference.fields[key].contents()
        if isinstance(value, np.ndarray):
            value = value.tolist()
        elif isinstance(value, list):
            value = [item.decode() for item in value]
        assert value == expected, key
    assert [t.name for t in header.tensors] == [t.name for t in reference.tensors]
    assert [t.num_bytes for t in header.tensors] == [t.n_bytes for t in reference.tensors]
    assert header.missing_bytes == 0


def test_the_file_type_wins_over_the_tensors(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", more=lambda w: w.add_file_type(15))
    assert inspect_file(path).quantization == "Q4_K_M"


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("qwen2", "causal"),
        ("not-yet-known", "causal"),
        ("gemma3", "causal"),
        ("mamba", "recurrent"),
        ("rwkv7", "recurrent"),
        ("jamba", "hybrid"),
        ("qwen35", "hybrid"),
        ("qwen3next", "hybrid"),
        ("granitehybrid", "hybrid"),
    ],
)
def test_kinds_that_run(tmp_path: Path, architecture: str, kind: str) -> None:
    path = write_file(tmp_path / "m.gguf", architecture=architecture)
    assert inspect_file(path).kind == kind


@pytest.mark.parametrize(
    ("architecture", "state"),
    [
        ("qwen2", "none"),
        ("mamba", "saved"),
        ("jamba", "saved"),
        ("qwen3next", "saved"),
        ("qwen35", "snapshots"),
        ("lfm2moe", "snapshots"),
        ("deepseek4", "whole"),
    ],
)
def test_what_can_be_done_with_a_state(tmp_path: Path, architecture: str, state: str) -> None:
    path = write_file(tmp_path / "m.gguf", architecture=architecture)
    assert inspect_file(path).state == state


def test_fields_per_layer_and_windows(tmp_path: Path) -> None:
    def more(writer: GGUFWriter) -> None:
        writer.add_sliding_window(512)
        writer.add_chat_template(CHATML)

    report = inspect_file(write_file(tmp_path / "m.gguf", architecture="gemma3", more=more))
    assert report.sliding_window == 512
    assert report.chat_template == CHATML
    assert report.as_dict()["has_chat_template"] is True

    def per_layer(writer: GGUFWriter) -> None:
        del writer.kv_data[0]["llama.attention.head_count_kv"]
        writer.add_head_count_kv([1, 0, 2])

    report = inspect_file(write_file(tmp_path / "n.gguf", more=per_layer))
    assert report.num_kv_values == (1 + 0 + 2) * (2 + 2)


# Files that cannot


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("bert", "is an encoder"),
        ("t5", "is an encoder-decoder"),
        ("llada", "is a diffusion model"),
        ("eagle3", "is a draft head"),
        ("dflash", "is a draft head"),
        ("gemma4-assistant", "is a draft head"),
        ("clip", "is a multimodal projector"),
        ("controlvector", "is a control vector"),
        ("wavtokenizer-dec", "speech"),
    ],
)
def test_kinds_that_do_not_run_are_refused_by_name(
    tmp_path: Path, architecture: str, words: str
) -> None:
    path = write_file(tmp_path / "m.gguf", architecture=architecture)
    message = refusal(path)
    assert words in message
    assert repr(architecture) in message
    assert inspect_file(path, any_kind=True).obstacle
    assert "cannot run" in describe([path])


def test_kinds_told_by_fields(tmp_path: Path) -> None:
    adapter = write_file(tmp_path / "a.gguf", more=lambda w: w.add_type("adapter"))
    assert "--lora" in refusal(adapter)
    projector = write_file(tmp_path / "p.gguf", more=lambda w: w.add_type("mmproj"))
    assert "mmproj" in refusal(projector)
    encoder = write_file(tmp_path / "e.gguf", more=lambda w: w.add_causal_attention(False))
    assert "is an encoder" in refusal(encoder)
    head = write_file(tmp_path / "h.gguf", more=lambda w: w.add_nextn_predict_layers(3))
    assert "is a draft head" in refusal(head)
    whole = write_file(tmp_path / "w.gguf", more=lambda w: w.add_nextn_predict_layers(1))
    assert inspect_file(whole).kind == "causal"
    assert kind_of("llama", general_type="imatrix") == "importance-matrix"


def test_a_vocabulary_without_weights_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", tensors=0)
    assert "no weights" in refusal(path)


def test_weights_without_a_vocabulary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("x", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "has no vocabulary" in refusal(path)


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.gguf")


def test_a_directory(tmp_path: Path) -> None:
    assert "is a directory" in refusal(tmp_path)
    write_file(tmp_path / "inside.gguf")
    assert "for example inside.gguf" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf")
    path.chmod(0)
    assert "cannot be read" in refusal(path)


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    assert re.search("cannot be read|no such file", refusal(tmp_path / ("x" * 5000)))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("m.gguf", b"", "is empty"),
        ("m.gguf", b"hello world", "it begins with b'hell' where 'GGUF' should be"),
        ("m.gguf", struct.pack("<Q", 60) + b'{"__metadata__":{}}', "is a safetensors file"),
        ("m.safetensors", b"\x01" * 99, "is a safetensors file"),
        ("m.gguf", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("m.gguf", b"<!DOCTYPE html>\n<html>", "is a web page"),
        ("pytorch_model.bin", b"PK\x03\x04rest", "PyTorch or zip archive"),
        ("m.bin", b"tjgg\x01\x00\x00\x00", "old GGJT format"),
        ("m.gguf", b"GGUF", "truncated inside its header"),
        ("m.gguf", b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "is GGUF version 1"),
        ("m.gguf", b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9, newer than"),
        ("m.gguf", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        ("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 50, 0), "damaged header"),
        ("m.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 50), "damaged header"),
        ("m.gguf", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63), "truncated inside"),
        ("m.gguf", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k\x63\0\0\0", "of type 99"),
    ],
)
def test_files_of_other_formats(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert words in refusal(path)


def test_a_truncated_file_says_by_how_much(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert "is truncated: 100 bytes are missing" in refusal(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", WORDS[:20])
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        refusal(path)


def test_damaged_headers_are_refused_or_read(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", WORDS[:20])
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(1000):
        data = bytearray(whole)
        for at in rng.integers(4, 900, 3):
            data[at] = rng.integers(256)
        path.write_bytes(data)
        try:
            told = describe([path])
        except ModelFileError as error:
            told = str(error)
        assert str(path) in told


# Shards


def write_shards(directory: Path, count: int = 3) -> list[Path]:
    paths = [directory / f"big-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    for number, path in enumerate(paths):

        def split(writer: GGUFWriter, number: int = number) -> None:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", count)
            writer.add_int32("split.tensors.count", 2 * count)

        write_file(path, more=split)
    return paths


def test_shards_are_counted_together(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    report = inspect_file(paths[0])
    assert report.num_shards == 3
    assert report.parameters == 3 * 64
    assert report.file_size == sum(path.stat().st_size for path in paths)


def test_a_later_shard_names_the_first(tmp_path: Path) -> None:
    message = refusal(write_shards(tmp_path)[1])
    assert "is shard 2 of 3; name the first one, big-00001-of-00003.gguf" in message


def test_missing_shards_are_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[1].unlink()
    assert "1 of 3 shards are missing: big-00002-of-00003.gguf" in refusal(paths[0])
    paths[2].unlink()
    assert "2 of 3 shards are missing: big-00002-of-00003.gguf and 1 more" in refusal(paths[0])


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-50])
    assert f"{paths[2]}: is truncated: 50 bytes" in refusal(paths[0])


def test_a_foreign_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    assert f"{paths[2]}: should be shard 3 of 3" in refusal(paths[0])


def test_a_renamed_first_shard(tmp_path: Path) -> None:
    path = write_shards(tmp_path)[0].rename(tmp_path / "model.gguf")
    assert "its name does not end in -00001-of-00003.gguf" in refusal(path)


# Pairs


def report_of(path: Path, tokens: Sequence[str], **options: object) -> FileReport:
    return inspect_file(write_file(path, tokens, **options))  # type: ignore[arg-type]


def test_equal_vocabularies(tmp_path: Path) -> None:
    target, draft = (report_of(tmp_path / name, WORDS) for name in ("t.gguf", "d.gguf"))
    pair = require_pair(target, draft)
    assert pair.compatible
    assert (pair.num_shared, pair.draft_limit, pair.excluded_ids) == (300, 300, ())
    assert pair.summary() == "the vocabularies are the same (300 tokens)"


@pytest.mark.parametrize("longer", ["target", "draft"])
def test_padding_at_the_end_is_tolerated(tmp_path: Path, longer: str) -> None:
    padded = WORDS + [f"[PAD{i}]" for i in range(1000)]
    types = [TokenType.NORMAL] * 300 + [TokenType.UNUSED] * 1000
    long = report_of(tmp_path / "long.gguf", padded, types=types)
    short = report_of(tmp_path / "short.gguf", WORDS)
    pair = require_pair(*((long, short) if longer == "target" else (short, long)))
    assert pair.draft_limit == 300
    assert pair.summary() == (
        f"1,000 ids are in the {longer} only: never drafted; 300 ids are shared"
    )


def test_a_vocabulary_shortened_by_128_is_tolerated(tmp_path: Path) -> None:
    target = report_of(tmp_path / "t.gguf", WORDS)
    draft = report_of(tmp_path / "d.gguf", WORDS[:-128])
    pair = require_pair(target, draft)
    assert (pair.num_only_target, pair.draft_limit, pair.substitute_id) == (128, 172, 1)


def test_many_real_tokens_in_one_file_only_are_not(tmp_path: Path) -> None:
    others = [f"other{i}" for i in range(290)]
    target = report_of(tmp_path / "t.gguf", [*WORDS[:10], *others])
    draft = report_of(tmp_path / "d.gguf", [*WORDS[:10], *WORDS[10:100]])
    assert not compare(target, draft).compatible
    longer = report_of(tmp_path / "l.gguf", WORDS)
    shorter = report_of(tmp_path / "s.gguf", WORDS[:-129])
    pair = require_pair(longer, shorter)
    assert pair.is_translated
    assert (pair.num_shared, pair.num_only_target, pair.num_only_draft) == (171, 129, 0)


def test_renamed_tokens_are_tolerated_and_excluded(tmp_path: Path) -> None:
    target = report_of(tmp_path / "t.gguf", WORDS)
    renamed = list(WORDS)
    renamed[5], renamed[299] = "<|fim|>", "<tool>"
    pair = require_pair(target, report_of(tmp_path / "d.gguf", renamed))
    assert pair.excluded_ids == (5, 299)
    assert pair.num_shared == 298
    assert pair.summary() == (
        "2 ids differ (first 5: 'word5' against '<|fim|>'): never drafted; 298 ids are shared"
    )
    one = require_pair(target, report_of(tmp_path / "e.gguf", [*WORDS[:-1], "x"]))
    assert one.summary().startswith("1 id differs (first 299")


def test_another_vocabulary_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    target = report_of(tmp_path / "t.gguf", WORDS)
    draft = report_of(tmp_path / "d.gguf", ["word0", *(f"wort{i}" for i in range(299, 0, -1))])
    with pytest.raises(VocabularyError) as error:
        require_pair(target, draft)
    assert str(error.value) == (
        f"{draft.path}: draft vocabulary differs from the target's at token 1: "
        "'word1' against 'wort299' (300 and 300 tokens); use a draft of the same family"
    )
    assert not compare(target, draft).compatible
    assert len(compare(target, draft).differing) == 299


def test_tokens_of_two_vocabularies_that_stand_for_the_same_bytes_belong_together(
    tmp_path: Path,
) -> None:
    words = [f"word{i}" for i in range(40)]
    texts = [
        "<s>",
        *(f"\u0120{word}" for word in words),
        "\u00e9",
        "\u00c3\u00a9",
        "A",
        "\u010a",
        "<end>",
    ]
    kinds = [TokenType.CONTROL, *[TokenType.NORMAL] * 44, TokenType.CONTROL]
    target = report_of(tmp_path / "t.gguf", texts, types=kinds)
    pieces = ["<end>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [*(f"\u2581{word}" for word in words[::-1]), "A", "\u00e9", "only here"]
    types = [TokenType.CONTROL, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * 43]
    draft = report_of(tmp_path / "d.gguf", pieces, types=types, tokenizer="llama")
    pair = require_pair(target, draft)
    assert pair.target_ids is not None
    by_byte = {1 + 0x0A: 44, 1 + 0xE9: 41}  # "\u00e9" of a byte-level text is one byte
    expected = [45, *(by_byte.get(own, -1) for own in range(1, 257)), *range(40, 0, -1), 43, 42, -1]
    assert pair.target_ids.tolist() == expected
    assert pair.summary() == (
        "the draft's vocabulary is another one, its tokens are translated: 45 of 300 (15%) are the "
        "target's, too; the others are never drafted"
    )


def test_a_small_vocabulary_gets_no_large_tolerance(tmp_path: Path) -> None:
    target = report_of(tmp_path / "t.gguf", WORDS[:12])
    draft = report_of(tmp_path / "d.gguf", WORDS[100:112])
    assert not compare(target, draft).compatible


def test_texts_stay_on_one_line(tmp_path: Path) -> None:
    target = report_of(tmp_path / "t.gguf", [f"\n{i}" for i in range(50)])
    draft = report_of(tmp_path / "d.gguf", [f"\r\x1b{i}" for i in range(50)])
    with pytest.raises(VocabularyError) as error:
        require_pair(target, draft)
    assert str(error.value).isprintable()


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    target = report_of(tmp_path / "t.gguf", WORDS)
    draft = report_of(tmp_path / "d.gguf", WORDS, tokenizer="rwkv")
    with pytest.raises(VocabularyError, match="of another kind: 'gpt2' against 'rwkv'"):
        require_pair(target, draft)


def test_harmless_differences_are_noted(tmp_path: Path) -> None:
    def more(writer: GGUFWriter) -> None:
        writer.add_bos_token_id(3)
        writer.add_chat_template(CHATML)

    target = report_of(tmp_path / "t.gguf", WORDS, more=more)
    draft = report_of(tmp_path / "d.gguf", WORDS, architecture="mamba", tensors=3)
    notes = require_pair(target, draft).notes
    assert any("beginning-of-text" in note for note in notes)
    assert any("chat templates" in note for note in notes)
    assert any("wrong way round" in note for note in notes)
    assert any("recurrent" in note for note in notes)


def test_a_draft_head_is_no_pair(tmp_path: Path) -> None:
    target = write_file(tmp_path / "t.gguf")
    head = write_file(tmp_path / "d.gguf", architecture="eagle3")
    pair = compare(inspect_file(target), inspect_file(head, any_kind=True))
    assert "the draft is a draft head" in pair.summary()


def test_large_vocabularies_are_quick(tmp_path: Path) -> None:
    words = [f"token {i}" for i in range(262_144)]
    target = write_file(tmp_path / "t.gguf", words)
    draft = write_file(tmp_path / "d.gguf", words[::-1])
    started = time.process_time()
    one, other = inspect_file(target), inspect_file(draft)
    assert compare(one, other).is_translated
    assert compare(one, one).compatible
    assert time.process_time() - started < 60  # pairwise comparison would take hours


# What is printed


def test_describe_names_both_files_and_the_verdict(tmp_path: Path) -> None:
    target = write_file(tmp_path / "t.gguf")
    draft = write_file(tmp_path / "d.gguf", [*WORDS[:-1], "x"])
    text = describe([target, draft])
    assert text.startswith(f"{target}\n  name           Tiny\n")
    assert "target t.gguf, draft d.gguf: can be a pair\n  1 id differs" in text
    other = write_file(tmp_path / "o.gguf", [f"wort{i}" for i in range(300)])
    assert "draft o.gguf: cannot be a pair" in describe([target, draft, other])


def test_json_has_files_and_pairs(tmp_path: Path) -> None:
    target = write_file(tmp_path / "t.gguf")
    document = json.loads(json.dumps(as_dict([target, target])))
    assert document["files"][0]["path"] == str(target)
    assert document["files"][0]["num_vocab"] == 300
    assert document["pairs"][0]["compatible"] is True
    assert "tokens" not in document["files"][0]


def test_describe_stops_at_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        describe([write_file(tmp_path / "t.gguf"), tmp_path / "none.gguf"])
