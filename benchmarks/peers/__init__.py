"""dyspec-edge beside llama.cpp's own speculative programs, each at its best, on the same work.

command.py    what is typed, the tables           contest.py  the search, the runs, the texts
rivals.py     who, and what is searched of whom   settings.py how
programs.py, engines.py   how everybody runs      build.py    llama.cpp's programs
"""

from __future__ import annotations
