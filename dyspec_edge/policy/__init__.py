"""Policies: how a tree is grown in a step.  One file each; `parse` reads what --policy says."""

from __future__ import annotations

from dyspec_edge.policy.interface import Drafter, Policy
from dyspec_edge.policy.parse import parse

__all__ = ["Drafter", "Policy", "parse"]
