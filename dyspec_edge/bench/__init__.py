"""Policies side by side on the same work: `dyspec-edge bench`, and what all benchmarks share.

commands.py    what people type
session.py     the runs of one command: in turns, each kept when it is finished
stage.py       open models on which policies take turns        plan.py   which, and in what order
summary.py     what runs come to        report.py  as Markdown        plots.py   as pictures
prompts.py     the work                 journal.py finished runs      circumstances.py  where
"""

from __future__ import annotations
