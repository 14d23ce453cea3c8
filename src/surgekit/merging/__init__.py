"""Merging through mergekit: one function that is repeatable and whole-or-nothing."""

from surgekit.merging.config import read_merge_config
from surgekit.merging.run import MergeResult, merge

__all__ = ["MergeResult", "merge", "read_merge_config"]
