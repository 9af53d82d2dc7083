"""Policies side by side on the same work: what `dyspec-edge bench` and all benchmarks share.

session.py     the runs of one command: in turns, each kept when it is finished
stage.py       open models on which policies take turns        schedule.py   which, in what order
summary.py     what runs come to        report.py  as Markdown
prompts.py     the work                 journal.py finished runs      conditions.py  where
sequoia_fit.py the acceptance rates that Sequoia's trees are made for

What people type, and plots, are in cli/; nothing here imports it.
"""

from __future__ import annotations
