"""Every error that a user can cause or meet.

`str(error)` is one line: what is wrong, where (a path or a value), and what to do.  The
command line prints that line and nothing else; an embedding program catches `DyspecError`.
"""

from __future__ import annotations


class DyspecError(Exception):
    """The base of all of them."""


class OptionError(DyspecError):
    """A value that cannot be used: an unknown policy, a negative size.  The CLI exits with 2."""


class ModelFileError(DyspecError):
    """A model file that is missing, broken, incomplete or of a kind that cannot be run."""


class VocabularyError(DyspecError):
    """A draft whose vocabulary does not fit the target's."""


class DeviceError(DyspecError):
    """A device that is not there, or that has too little memory."""


class DownloadError(DyspecError):
    """A model that could not be fetched: unreachable, no space, wrong checksum."""


class DecodeError(DyspecError):
    """llama.cpp could not evaluate a batch.  The caches stay valid."""


class Cancelled(DyspecError):
    """Generation was stopped from outside.  The caches stay valid."""


class EngineBusy(DyspecError):
    """Another reply of this engine is half-read, and whoever asks is the one who reads it."""


class ContextOverflow(DyspecError):
    """A prompt that is longer than the context.

    Attributes:
        num_prompt_tokens: tokens of the prompt.
        num_ctx: tokens that the context can hold.
    """

    def __init__(self, num_prompt_tokens: int, num_ctx: int) -> None:
        super().__init__(
            f"the prompt has {num_prompt_tokens} tokens but the context holds {num_ctx}; "
            "shorten it or start with a larger -c"
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.num_ctx = num_ctx
