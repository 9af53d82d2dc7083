"""Policies: how a tree is grown in a step.  One file each; `parse` reads what --policy says."""

from __future__ import annotations

from dyspec_edge.policy.interface import Drafter, NoDrafter, Policy
from dyspec_edge.policy.parse import parse

__all__ = ["Drafter", "NoDrafter", "Policy", "parse"]
