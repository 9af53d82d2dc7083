"""llama.cpp's log: silent by default, its complaint remembered for error messages."""

from __future__ import annotations

import ctypes
import logging
import os
import threading

import llama_cpp

# Where llama.cpp gives up it would start a debugger on this process and print a stack.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

log = logging.getLogger("dyspec_edge.llama")
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


class _LogSink(threading.local):
    """Collects llama.cpp's log: lines go to `logging`, an error is remembered.

    Each thread has its own: it hears what its own calls complain of.

    Attributes:
        complaint: the first error since this was set to "", which names the root of the trouble.
    """

    def __init__(self) -> None:
        self.complaint = ""
        self._line = ""
        self._level = logging.INFO

    def write(self, level: int, text: bytes, _user_data: int) -> None:
        if level != 5:  # GGML_LOG_LEVEL_CONT goes on with the line before
            self._level = _LEVELS.get(level, logging.DEBUG)
        self._line += text.decode("utf-8", "replace")
        while "\n" in self._line:
            line, self._line = self._line.split("\n", 1)
            if self._level >= logging.ERROR and not self.complaint:
                self.complaint = line.strip()
            log.log(self._level, "%s", line)


sink = _LogSink()
_sink_callback = llama_cpp.llama_log_callback(sink.write)
llama_cpp.llama_log_set(_sink_callback, ctypes.c_void_p(0))
llama_cpp.llama_backend_init()


def set_verbose(verbose: bool) -> None:
    """Show llama.cpp's log on stderr through `logging`, or keep it silent (the default)."""
    log.setLevel(logging.INFO if verbose else logging.CRITICAL + 1)


set_verbose(False)
