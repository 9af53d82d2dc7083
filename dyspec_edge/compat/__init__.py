"""Other people's interfaces over an `Engine`, for programs that were written for them.

llama.py        llama-cpp-python's `Llama`
arguments.py    what its methods take, checked; what is not supported, by name
answers.py      the dictionaries that it returns
"""

from __future__ import annotations

from dyspec_edge.compat.llama import Llama

__all__ = ["Llama"]
