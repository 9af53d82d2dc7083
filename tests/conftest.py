"""The tiny models that the tests share; tests/tiny.py says what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests import tiny
from tests.tiny_architectures import Architecture

PairFactory = Callable[..., "TinyPair"]


class TinyPair(NamedTuple):
    """Paths of a target and its draft."""

    target: Path
    draft: Path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu-layers", type=int, default=0, help="layers that tests of the device path offload"
    )


@pytest.fixture(scope="session")
def gpu_layers(request: pytest.FixtureRequest) -> int:
    """What --gpu-layers says."""
    return int(request.config.getoption("--gpu-layers"))


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of all tiny files."""
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def tiny_target(tiny_dir: Path) -> Path:
    """A llama model with 411 tokens and ChatML's template."""
    return tiny.write_model(tiny_dir / "target.gguf", chat_template=tiny.CHATML)


@pytest.fixture(scope="session")
def make_pair(tiny_dir: Path, tiny_target: Path) -> PairFactory:
    """`make_pair(noise)`: the tiny target with a draft of that noise."""

    def make(noise: float) -> TinyPair:
        draft = tiny_dir / f"draft-{noise}.gguf"
        if not draft.exists():
            tiny.write_model(draft, noise=noise, chat_template=tiny.CHATML)
        return TinyPair(tiny_target, draft)

    return make


@pytest.fixture(scope="session")
def tiny_pair(make_pair: PairFactory) -> TinyPair:
    """A target and a good draft: eight tokens of ten are accepted at T = 1."""
    return make_pair(0.05)


@pytest.fixture(scope="session")
def tiny_equal(make_pair: PairFactory) -> TinyPair:
    """Two files with the same weights: every drafted token is right."""
    return make_pair(0.0)


@pytest.fixture(scope="session")
def tiny_adversarial(tiny_dir: Path) -> TinyPair:
    """Disjoint supports: what the draft proposes has no chance at the target."""
    target_bias, draft_bias = tiny.disjoint_biases()
    return TinyPair(
        tiny.write_model(tiny_dir / "even.gguf", bias=target_bias, chat_template=tiny.CHATML),
        tiny.write_model(tiny_dir / "odd.gguf", bias=draft_bias, chat_template=tiny.CHATML),
    )


@pytest.fixture(scope="session")
def tiny_six(tiny_dir: Path) -> TinyPair:
    """A pair with six tokens (<unk> <s> </s> a b c) for tests of whole distributions."""
    bias = np.zeros(len(tiny.SIX_TOKENS), np.float32)
    bias[tiny.SIX_TOKENS.eos] = -1.5

    def write(name: str, noise: float) -> Path:
        return tiny.write_model(
            tiny_dir / name,
            vocabulary=tiny.SIX_TOKENS,
            seed=5,
            bias=bias,
            noise=noise,
            logit_std=1.2,
        )

    return TinyPair(write("six.gguf", 0.0), write("six-draft.gguf", 0.5))


@pytest.fixture(scope="session")
def tiny_six_hybrid(tiny_dir: Path, tiny_six: TinyPair) -> TinyPair:
    """A qwen35 target with the same six tokens, and that draft."""
    bias = np.zeros(len(tiny.SIX_TOKENS), np.float32)
    bias[tiny.SIX_TOKENS.eos] = -1.5
    target = tiny.write_model(
        tiny_dir / "six-qwen35.gguf",
        vocabulary=tiny.SIX_TOKENS,
        seed=5,
        bias=bias,
        logit_std=1.2,
        architecture="qwen35",
    )
    return TinyPair(target, tiny_six.draft)


@pytest.fixture(scope="session")
def tiny_shortened(tiny_dir: Path) -> Path:
    """A draft of the tiny target whose vocabulary lacks the 8 padding ids at the end."""
    vocabulary = tiny.VOCABULARY.shortened(8)
    return tiny.write_model(tiny_dir / "shortened.gguf", vocabulary=vocabulary, noise=0.05)


@pytest.fixture(scope="session")
def tiny_renamed(tiny_dir: Path) -> Path:
    """A draft of the tiny target in which one special token has another name."""
    start = tiny.VOCABULARY.texts.index("<|im_start|>")
    vocabulary = tiny.VOCABULARY.renamed(start, "<|turn|>")
    return tiny.write_model(tiny_dir / "renamed.gguf", vocabulary=vocabulary, noise=0.05)


@pytest.fixture(scope="session")
def tiny_foreign(tiny_dir: Path) -> Path:
    """A model with another tokenizer: it cannot be a draft of the tiny target."""
    return tiny.write_model(tiny_dir / "foreign.gguf", vocabulary=tiny.OTHER_VOCABULARY)


@pytest.fixture(scope="session")
def tiny_untemplated(tiny_dir: Path) -> Path:
    """The tiny target without a chat template in its file."""
    return tiny.write_model(tiny_dir / "untemplated.gguf")


@pytest.fixture(scope="session")
def tiny_sliding(tiny_dir: Path) -> TinyPair:
    """A gemma3 pair with a sliding window of 16 tokens."""
    return TinyPair(
        tiny.write_model(tiny_dir / "sliding.gguf", architecture="gemma3"),
        tiny.write_model(tiny_dir / "sliding-draft.gguf", architecture="gemma3", noise=0.03),
    )


@pytest.fixture(scope="session")
def tiny_recurrent(tiny_dir: Path) -> Path:
    """A mamba model."""
    return tiny.write_model(tiny_dir / "recurrent.gguf", architecture="mamba")


@pytest.fixture(scope="session")
def tiny_state(tiny_dir: Path) -> Callable[[Architecture], Path]:
    """`tiny_state(architecture)`: a model with recurrent layers."""

    def make(architecture: Architecture) -> Path:
        path = tiny_dir / f"{architecture}.gguf"
        if not path.exists():
            tiny.write_model(path, architecture=architecture, chat_template=tiny.CHATML)
        return path

    return make


@pytest.fixture(scope="session")
def tiny_hybrid(tiny_dir: Path) -> Callable[..., TinyPair]:
    """`tiny_hybrid(target, draft="llama")`: architectures; about half is accepted."""

    def make(target: Architecture, draft: Architecture = "llama") -> TinyPair:
        pair = TinyPair(*(tiny_dir / f"alike-{name}.gguf" for name in (target, draft)))
        for path, name in zip(pair, (target, draft), strict=True):
            if not path.exists():
                tiny.write_model(
                    path, architecture=name, layer_gain=0.25, chat_template=tiny.CHATML
                )
        return pair

    return make


@pytest.fixture(scope="session")
def tiny_headed(tiny_dir: Path) -> Callable[..., TinyPair]:
    """`tiny_headed(architecture)`: a target whose head is right about half the time.

    That of hy_v3 has three layers.
    """

    def make(architecture: Architecture, *, layer_gain: float = 0.25) -> TinyPair:
        path = tiny_dir / f"headed-{architecture}-{layer_gain}.gguf"
        if not path.exists():
            tiny.write_model(
                path,
                architecture=architecture,
                num_heads=3 if architecture == "hy_v3" else 1,
                layer_gain=layer_gain,
                chat_template=tiny.CHATML,
            )
        return TinyPair(path, path)

    return make


@pytest.fixture(scope="session")
def tiny_truncated(tiny_dir: Path, tiny_target: Path) -> Path:
    """The tiny target without its last 1,000 bytes."""
    return tiny.write_truncated(tiny_dir / "truncated.gguf", tiny_target)


@pytest.fixture(scope="session")
def not_gguf(tiny_dir: Path) -> Path:
    """A file that is no model at all."""
    path = tiny_dir / "notes.gguf"
    path.write_text("These are notes, not weights.\n" * 100)
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test measures or fetches is left in the user's own cache."""
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without any model files, which the caches of all programs lie under."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(home / "cache"))
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home
