"""Policies: how a tree is grown in a step.  One file each; `parse` reads what --policy says."""

from __future__ import annotations

from dyspec_edge.decode.policy.interface import ROOT, Nodes, Policy
from dyspec_edge.decode.policy.parse import DEFAULT, DEFAULT_UNDER_RESIDUAL, parse
from dyspec_edge.decode.policy.plain import PlainPolicy

__all__ = ["DEFAULT", "DEFAULT_UNDER_RESIDUAL", "ROOT", "Nodes", "PlainPolicy", "Policy", "parse"]
