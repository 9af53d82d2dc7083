"""Tiny F32 GGUF models, written in milliseconds, on which every promise can be checked exactly.

Random transformers of two layers with a byte-fallback tokenizer.  Dimension 0 of the residual
stream is a constant that no layer writes to, so column 0 of the output matrix is a bias for each
token: it keeps raw bytes and control tokens rare, and gives models with disjoint supports.

    write_model(path)                 a target
    write_model(path, noise=0.05)     its draft, the same weights plus noise: 0.8 accepted at T = 1
    write_model(path, noise=1.0)      a draft that is mostly wrong

Sum of min(target, draft) over the tokens, mean over a text at T = 1, by noise (llama architecture):

    noise    0.02  0.05  0.1   0.2   0.3   0.5   0.8   1.5
    overlap  0.92  0.80  0.63  0.39  0.28  0.18  0.14  0.10
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.tiny_architectures import (
    NUM_EMBD,
    NUM_LAYERS,
    OUTPUT_NORM,
    OUTPUTS,
    Architecture,
    Array,
    add_keys,
    layer,
)

NUM_CTX = 2048
LOGIT_STD = 2.6
CONSTANT = 2.0
# The constant after the final norm, about the same in every context; measured.
NORMED_CONSTANT = 0.95

RARE = -7.0
NEVER = -30.0
# Twice as far, since the constant and with it the bias shrink where the other dimensions are large.
BANNED = -60.0

NORMAL = int(gguf.TokenType.NORMAL)
UNKNOWN = int(gguf.TokenType.UNKNOWN)
CONTROL = int(gguf.TokenType.CONTROL)
UNUSED = int(gguf.TokenType.UNUSED)
BYTE = int(gguf.TokenType.BYTE)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_WORDS = "the and of to in is it that was for on you with as are this be at tree leaf root"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token texts, their kinds and scores, and the special ids."""

    texts: tuple[str, ...]
    kinds: tuple[int, ...]
    bos: int = 1
    eos: int = 2
    eot: int | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def normal(self) -> NDArray[np.int64]:
        """The ids that a text consists of: no bytes, no control tokens, no padding."""
        return np.flatnonzero(np.array(self.kinds) == NORMAL)

    def shortened(self, num_ids: int) -> Vocabulary:
        """The same without the last `num_ids` ids."""
        return replace(self, texts=self.texts[:-num_ids], kinds=self.kinds[:-num_ids])

    def renamed(self, token: int, text: str) -> Vocabulary:
        """The same with another text for one id."""
        return replace(self, texts=(*self.texts[:token], text, *self.texts[token + 1 :]))

    def bias(self) -> Array:
        """The logit bias of each id: texts are made of normal tokens, now and then an end."""
        kinds = np.array(self.kinds)
        bias = np.zeros(len(self), np.float32)
        bias[kinds == BYTE] = RARE
        bias[(kinds == CONTROL) | (kinds == UNKNOWN) | (kinds == UNUSED)] = NEVER
        bias[self.eos] = RARE + 3.0
        if self.eot is not None:
            bias[self.eot] = RARE + 3.0
        return bias


def _merges(words: list[str]) -> list[str]:
    """Every prefix of two or more characters: the tokenizer reaches a word from the left."""
    prefixes = [f"\u2581{word}"[:end] for word in words for end in range(2, len(word) + 2)]
    return list(dict.fromkeys(prefixes))


def make_vocabulary(words: str = _WORDS, num_padding: int = 8) -> Vocabulary:
    """A SentencePiece vocabulary: 256 bytes, the ASCII characters, merges, ChatML's markers."""
    head = ["<unk>", "<s>", "</s>"]
    byte = [f"<0x{value:02X}>" for value in range(256)]
    text = ["\u2581", *map(chr, range(33, 127)), *_merges(words.split())]
    special = ["<|im_start|>", "<|im_end|>"]
    padding = [f"<|padding_{index}|>" for index in range(num_padding)]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(text)
    kinds += [CONTROL] * len(special) + [UNUSED] * num_padding
    texts = (*head, *byte, *text, *special, *padding)
    return Vocabulary(texts, tuple(kinds), eot=texts.index("<|im_end|>"))


VOCABULARY = make_vocabulary()
OTHER_VOCABULARY = make_vocabulary("ein der die das und ist nicht mit auch Baum Blatt")
# Small enough for chi-square tests of whole distributions.  Texts may only use a, b and c.
SIX_TOKENS = Vocabulary(
    ("<unk>", "<s>", "</s>", "a", "b", "c"), (UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL)
)


def write_model(
    path: Path,
    *,
    vocabulary: Vocabulary = VOCABULARY,
    seed: int = 1,
    noise: float = 0.0,
    noise_seed: int = 1,
    bias: Array | None = None,
    order: NDArray[np.int32] | None = None,
    logit_std: float = LOGIT_STD,
    layer_gain: float = 1.0,
    chat_template: str | None = None,
    architecture: Architecture = "llama",
    num_heads: int = 0,
    sliding_window: int = 16,
    num_ctx: int = NUM_CTX,
    add_bos: bool = True,
    add_eos: bool = False,
    space_prefix: bool = False,
) -> Path:
    """Write a model and return its path.

    Args:
        path: the file to write.
        vocabulary: its tokenizer; ids are rows of the embedding and the output matrix.
        seed: of the weights.
        noise: standard deviation of what is added to every weight, in units of the weight's own;
            0 is the target itself; the table above says what others give.
        noise_seed: of that noise.
        bias: logit bias of each id, by default `vocabulary.bias()`.
        order: ids by the row that they get; None leaves id i in row i.  The tokenizer stays.
        logit_std: spread of the logits over the tokens; larger is more certain.
        layer_gain: factor of what layers add to the residual stream; where it is small, models of
            all architectures with one seed say much the same.
        chat_template: Jinja text for the file's metadata.
        architecture: one of those in tiny_architectures.py.
        num_heads: layers of a multi-token-prediction head (qwen35, glm4moe).
        sliding_window: of gemma3.
        num_ctx: the training length that the file states.
        add_bos: whether the tokenizer puts `<s>` in front.
        add_eos: whether it puts `</s>` behind.
        space_prefix: whether it puts a space in front.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(num_ctx)
    writer.add_embedding_length(NUM_EMBD)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_keys(writer, architecture, num_heads=num_heads)
    if architecture == "gemma3":
        writer.add_sliding_window(sliding_window)
    _add_tokenizer(writer, vocabulary, chat_template, add_bos, space_prefix)
    if add_eos:
        writer.add_add_eos_token(add_eos)

    weights = _weights(len(vocabulary), architecture, num_heads, np.random.default_rng(seed))
    weights["output.weight"] *= np.float32(logit_std / np.sqrt(NUM_EMBD))
    for name, tensor in weights.items():
        if name.endswith(OUTPUTS):
            tensor *= np.float32(layer_gain)
    if noise:
        _add_noise(weights, noise, np.random.default_rng(noise_seed))
    _set_constant(weights, vocabulary.bias() if bias is None else bias, architecture)
    if order is not None:
        for name in ("token_embd.weight", "output.weight"):
            weights[name] = weights[name][order]
    for name, tensor in weights.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_truncated(path: Path, model: Path, num_bytes: int = 1000) -> Path:
    """A copy of `model` without its last `num_bytes`, as a broken download leaves it."""
    path.write_bytes(model.read_bytes()[:-num_bytes])
    return path


def disjoint_biases(vocabulary: Vocabulary = VOCABULARY) -> tuple[Array, Array]:
    """Biases of a target and a draft that never agree: even normal ids here, odd ones there."""
    target, draft = vocabulary.bias(), vocabulary.bias()
    normal = vocabulary.normal
    target[normal[1::2]] = BANNED
    draft[normal[::2]] = BANNED
    # Bytes and ends would be common ground.
    draft[np.setdiff1d(np.arange(len(vocabulary)), normal)] = BANNED
    return target, draft


def _add_tokenizer(
    writer: gguf.GGUFWriter,
    vocabulary: Vocabulary,
    chat_template: str | None,
    add_bos: bool,
    space_prefix: bool,
) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(vocabulary.texts))
    # The longest merge wins; among equals the earlier one.
    scores = [
        10.0 * len(text) - 1e-3 * token if kind == NORMAL else 0.0
        for token, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True))
    ]
    writer.add_token_scores(scores)
    writer.add_token_types(list(vocabulary.kinds))
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_unk_token_id(0)
    if vocabulary.eot is not None:
        writer.add_eot_token_id(vocabulary.eot)
    writer.add_add_bos_token(add_bos)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(space_prefix)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


def _weights(
    num_vocab: int, architecture: Architecture, num_heads: int, rng: np.random.Generator
) -> dict[str, Array]:
    def draw(rows: int, columns: int, gain: float) -> Array:
        scale = np.float32(gain / np.sqrt(columns))
        tensor: Array = rng.standard_normal((rows, columns), np.float32) * scale
        return tensor

    output_norm = OUTPUT_NORM.get(architecture, "output_norm.weight")
    weights: dict[str, Array] = {output_norm: np.ones(NUM_EMBD, np.float32)}
    num_layer = NUM_LAYERS[architecture]
    for index in range(num_layer + num_heads):
        parts = layer(draw, architecture, index, is_head=index >= num_layer)
        weights |= {f"blk.{index}.{name}": tensor for name, tensor in parts.items()}
    # Generators of their own: a shortened vocabulary has the long one's rows.
    embd_rng, output_rng = rng.spawn(2)
    shape = (num_vocab, NUM_EMBD)
    weights["token_embd.weight"] = embd_rng.standard_normal(shape, np.float32)
    weights["output.weight"] = output_rng.standard_normal(shape, np.float32)
    return weights


def _add_noise(weights: dict[str, Array], noise: float, rng: np.random.Generator) -> None:
    for (name, tensor), child in zip(weights.items(), rng.spawn(len(weights)), strict=True):
        if tensor.ndim >= 2 and name.endswith(".weight"):
            spread = np.float32(noise) * tensor.std()
            added = child.standard_normal(tensor.shape, np.float32) * spread
            # The sum keeps the spread of the original, so that the draft is as sure of itself.
            weights[name] = (tensor + added) / np.float32(np.sqrt(1 + noise**2))


def _set_constant(weights: dict[str, Array], bias: Array, architecture: Architecture) -> None:
    """Make dimension 0 a constant and the bias of the output; layers do not write to it."""
    weights["token_embd.weight"][:, 0] = CONSTANT
    weights["output.weight"][:, 0] = bias / np.float32(NORMED_CONSTANT)
    for name, tensor in weights.items():
        if name.endswith(OUTPUTS):
            tensor[..., 0, :] = 0
    if architecture == "gemma3":
        # This architecture multiplies embeddings by the square root of their length.
        weights["token_embd.weight"] /= np.float32(np.sqrt(NUM_EMBD))
