"""Copies of a model in fewer bits, by llama.cpp's own quantizer; run as a process of its own.

    python -m dyspec_edge.llama.quantization MODEL OUT TYPE THREADS [LAYER,...]

llama.cpp can neither be stopped in the middle nor tells how far it is.  So whoever wants a copy
starts this, reads from stdout how many bytes it will have, watches the file grow, and closes stdin
to end it: then, and also where its parent is killed, the process removes what it has written.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

from dyspec_edge.errors import ModelFileError
from dyspec_edge.llama.log import set_verbose, sink

TYPES = {
    "Q2_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q2_K,
    "Q3_K_S": llama_cpp.LLAMA_FTYPE_MOSTLY_Q3_K_S,
    "Q3_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q3_K_M,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}
"""Those that need no importance matrix and are small enough for a draft."""

BUFFER = 256 << 20
"""Bytes of rows that llama.cpp holds at a time; by itself it would take whole tensors."""

_SIZE = re.compile(r"quant size\s*=\s*([\d.]+) MiB")


def quantize(
    model: Path,
    out: Path,
    kind: str,
    *,
    num_threads: int,
    dropped: Sequence[int] = (),
    dry: bool = False,
) -> None:
    """Write a copy of `model`, whatever its own type.

    Args:
        model: of a split one the first shard; the copy is one file.
        kind: a key of `TYPES`.
        dropped: layers that are left out, ascending; only where all layers are alike.
        dry: write nothing, only log how large it would be.

    Raises:
        ModelFileError: llama.cpp cannot do that.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = num_threads, TYPES[kind], True
    params.dry_run, params.max_buf_size = dry, BUFFER
    layers = (ctypes.c_int32 * (len(dropped) + 1))(*dropped, -1)
    if dropped:
        params.prune_layers = layers
    sink.complaint = ""
    if llama_cpp.llama_model_quantize(str(model).encode(), str(out).encode(), ctypes.byref(params)):
        raise ModelFileError(f"{model}: llama.cpp cannot quantize this file ({sink.complaint})")


class _Size(logging.Handler):
    """Hears from llama.cpp's log how large the tensors of a copy would be."""

    num_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        found = _SIZE.search(record.getMessage())
        if found:
            self.num_bytes = int(float(found[1]) * (1 << 20))


def size_of_copy(model: Path, out: Path, kind: str, dropped: Sequence[int] = ()) -> int:
    """Bytes of the tensors of that copy; 0 if llama.cpp does not say.

    Raises:
        ModelFileError: as `quantize`.
    """
    heard = _Size()
    log = logging.getLogger("dyspec_edge.llama")
    log.addHandler(heard)
    log.propagate = False
    set_verbose(True)
    try:
        quantize(model, out, kind, num_threads=1, dropped=dropped, dry=True)
    finally:
        set_verbose(False)
        log.propagate = True
        log.removeHandler(heard)
    return heard.num_bytes


def _end_with_parent(out: Path) -> None:
    """Nothing is ever sent: stdin ends when the parent closes it or is no more."""
    sys.stdin.buffer.read()
    out.unlink(missing_ok=True)
    os._exit(1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _main(model: str, out: str, kind: str, num_threads: str, layers: str = "") -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent, which then closes stdin
    place, dropped = Path(out), [int(layer) for layer in layers.split(",") if layer]
    threading.Thread(target=_end_with_parent, args=(place,), daemon=True).start()
    try:
        _say(str(size_of_copy(Path(model), place, kind, dropped)))
        quantize(Path(model), place, kind, num_threads=int(num_threads), dropped=dropped)
    except ModelFileError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    code = _main(*sys.argv[1:])
    os._exit(code)  # the thread that waits for stdin cannot be ended
