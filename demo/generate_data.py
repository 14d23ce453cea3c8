"""Writes the data sets of the demonstration as JSON lines.

Run ``python demo/generate_data.py [--out demo/data] [--seed 0] [--domains math code instruct]
[--with-train]``. It writes OUT/DOMAIN/{calibration,validation,test}.jsonl, with ``--with-train``
also OUT/DOMAIN/train.jsonl, and OUT/plain/test.jsonl, a set of plain prose of no domain.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

MODULES = {"math": "math_problems", "code": "code_tasks", "instruct": "instruct_tasks"}
"""Module in ``domains`` of every task domain."""


def write_jsonl(path: Path, items: Iterable[dict[str, Any]]) -> int:
    """Write one JSON object a line to ``path``, making its folder; return the number of lines."""
    lines = [json.dumps(item, ensure_ascii=False) for item in items]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return len(lines)


def write_all(out: Path, seed: int, domains: Sequence[str], with_train: bool) -> dict[str, int]:
    """Write the sets of ``domains`` and the plain set below ``out``.

    Returns the number of items per file, keyed by the path relative to ``out``. Raises KeyError
    for a domain that is not in ``MODULES``.
    """
    counts: dict[str, int] = {}
    for domain in domains:
        # Imported only when asked for, so that one domain can be made without the others.
        module = importlib.import_module(f"domains.{MODULES[domain]}")
        for split, items in module.generate(seed).items():
            if split == "train" and not with_train:
                continue
            name = f"{domain}/{split}.jsonl"
            counts[name] = write_jsonl(out / name, items)
    plain_text = importlib.import_module("domains.plain_text")
    counts["plain/test.jsonl"] = write_jsonl(out / "plain/test.jsonl", plain_text.generate(seed))
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, write the files and print one line for each; return 0."""
    parser = argparse.ArgumentParser(description="Write the demonstration's data sets.")
    parser.add_argument("--out", type=Path, default=HERE / "data", help="folder to write to")
    parser.add_argument("--seed", type=int, default=0, help="seed of every generator")
    parser.add_argument(
        "--domains", nargs="+", choices=list(MODULES), default=list(MODULES), help="what to write"
    )
    parser.add_argument("--with-train", action="store_true", help="also write the train splits")
    args = parser.parse_args(argv)
    for name, count in write_all(args.out, args.seed, args.domains, args.with_train).items():
        print(f"{args.out / name}: {count} items")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
