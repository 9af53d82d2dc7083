from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dyspec_edge.errors import ModelFileError
from dyspec_edge.files.gguf_header import read_header
from dyspec_edge.files.model_file import inspect_file
from tests.files.test_pair import WORDS, Write, refusal, write_file
from tests.tiny import CHATML, write_model


def test_a_token_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", [*WORDS, WORDS[7]])
    assert "its vocabulary has the token 'word7' twice; fetch it again" in refusal(path)


def test_tokens_that_differ_behind_a_zero_byte_are_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "m.gguf", [*WORDS, "word7\0more"])
    assert "'word7' twice" in refusal(path)


def test_empty_tokens_may_repeat(tmp_path: Path) -> None:
    assert inspect_file(write_file(tmp_path / "m.gguf", [*WORDS, "", ""])).obstacle is None


def test_a_missing_byte_is_refused_where_bytes_spell_characters(tmp_path: Path) -> None:
    tokens = [*WORDS, *(f"<0x{byte:02X}>" for byte in range(256) if byte != 8)]
    path = write_file(tmp_path / "m.gguf", tokens, tokenizer="llama")
    assert "no token for the byte 0x08" in refusal(path)
    write_file(path, [*tokens, "\b"], tokenizer="llama")
    assert inspect_file(path).obstacle is None


@pytest.mark.parametrize("tokenizer", ["none", "no_vocab"])
def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path, tokenizer: str) -> None:
    assert "no vocabulary" in refusal(write_file(tmp_path / "m.gguf", tokenizer=tokenizer))


@pytest.mark.parametrize("layers", [0, 513, (1 << 32) - 1])
def test_an_impossible_number_of_layers_is_refused(tmp_path: Path, layers: int) -> None:
    path = write_file(tmp_path / "m.gguf", layers=layers)
    assert f"its header says {layers:,} layers" in refusal(path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (lambda w: w.add_expert_count(1025), "1,025 experts"),
        (
            lambda w: (w.add_expert_count(4), w.add_expert_used_count(5)),
            "5 experts in use out of 4",
        ),
        (lambda w: w.add_expert_count(4), "0 experts in use out of 4"),
        (lambda w: w.add_rope_dimension_count(3), "keys of 2 values, of which 3 rotate"),
        (lambda w: w.add_key_length(4), "keys of 4 values, of which 4 rotate, beside 2"),
        (lambda w: w.add_string("llama.rope.scaling.type", "x"), "in the unknown way 'x'"),
    ],
)
def test_parameters_that_llama_cpp_asserts_are_checked(
    tmp_path: Path, more: Write, words: str
) -> None:
    assert words in refusal(write_file(tmp_path / "m.gguf", more=more))


LOAD_ALL = """
import sys
from pathlib import Path
from dyspec_edge import DyspecError, Engine, EngineConfig
for path in map(Path, sys.argv[1:]):
    print(path.name, flush=True)
    try:
        with Engine.load(EngineConfig(path, num_ctx=256, num_threads=1)) as engine:
            engine.generate("the tree", max_tokens=3)
    except DyspecError as error:
        assert "\\n" not in str(error)
"""


def test_mutated_headers_never_end_the_process(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf", chat_template=CHATML)
    data = whole.read_bytes()
    end = data.index(b"token_embd.weight") + 2000  # fields, tokens and the table of tensors
    rng = random.Random(1)
    accepted: list[Path] = []
    num_refused = 0
    for number in range(300):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(mutated(data, rng, end))
        try:
            inspect_file(path)
            accepted.append(path)
        except ModelFileError:
            num_refused += 1
            path.unlink()
    assert num_refused > 50
    assert len(accepted) > 50
    ran = subprocess.run(
        [sys.executable, "-c", LOAD_ALL, *map(str, accepted)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout.splitlines()[-1]}: {ran.stderr[-500:]}"


def mutated(data: bytes, rng: random.Random, end: int) -> bytes:
    """`data` with one thing wrong before `end`."""
    changed, at = bytearray(data), rng.randrange(4, end)
    size = rng.choice([0, 1, 1 << 31, (1 << 32) - 1])
    kind = rng.choice(["bit", "byte", "length", "long length", "zeros", "copy"])
    if kind == "bit":
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        changed[at] = rng.randrange(256)
    elif kind == "length":
        changed[at : at + 4] = struct.pack("<I", size)
    elif kind == "long length":
        changed[at : at + 8] = struct.pack("<Q", rng.choice([1 << 32, 1 << 63, (1 << 64) - 1]))
    elif kind == "zeros":
        changed[at : at + 16] = bytes(16)
    else:
        start = rng.randrange(4, end)
        changed[at : at + 8] = data[start : start + 8]
    return bytes(changed)


def test_the_whole_file_is_sound(tmp_path: Path) -> None:
    path = write_model(tmp_path / "whole.gguf")
    assert read_header(path).missing_bytes == 0
    assert inspect_file(path).obstacle is None
