"""Task accuracy on the demonstration's test sets: does the answer solve the problem?

    python demo/accuracy.py runs/recipe [--methods linear@both darts-ewl1@both] [--limit 100]

Greedy answers of the base, the expert, the merged model, and the merged model with each adapter
named, checked by the domain's own program: the number on the last line, asserts run in a
sandbox, the constraints of the request. Writes ``RUN/accuracy.json``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import surgekit

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
MODULES = {"math": "math_problems", "code": "code_tasks", "instruct": "instruct_tasks"}


def main() -> None:
    """Measure what the command line asks for and print a table."""
    parser = argparse.ArgumentParser(description="Task accuracy on the test sets.")
    parser.add_argument("run", type=Path, help="a run directory of the demonstration")
    parser.add_argument("--domains", nargs="+", choices=sorted(MODULES), default=list(MODULES))
    parser.add_argument("--methods", nargs="*", default=[], help="adapters to try")
    parser.add_argument("--models", nargs="*", default=["base", "expert", "merged"])
    parser.add_argument("--split", choices=["validation", "test"], default="test")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for domain in args.domains:
        items = _items(domain, args.split)[: args.limit]
        check = importlib.import_module(f"domains.{MODULES[domain]}").check
        rows: dict[str, Any] = {}
        folders = {
            "base": args.run / "models" / "base",
            "expert": args.run / "models" / domain,
            "merged": args.run / "merged",
        }
        for name in args.models:
            model = surgekit.load_model(folders[name])
            rows[name] = _accuracy(model, folders[name], items, check, args.batch_size, None)
            _say(domain, name, rows[name])
        if args.methods:
            model = surgekit.load_model(folders["merged"])
            for method in args.methods:
                adapter = args.run / "adapters" / domain / method
                rows[method] = _accuracy(
                    model, folders["merged"], items, check, args.batch_size, adapter
                )
                _say(domain, method, rows[method])
        results[domain] = {"items": len(items), "models": rows}
    document = {"split": args.split, "batch_size": args.batch_size, "domains": results}
    (args.run / "accuracy.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _accuracy(
    model: PreTrainedModel,
    folder: Path,
    items: list[dict[str, Any]],
    check: Callable[[dict[str, Any], str], bool],
    batch_size: int,
    adapter: Path | None,
) -> dict[str, Any]:
    started = time.perf_counter()
    attached = surgekit.attach(model, adapter) if adapter is not None else nullcontext()
    with attached:
        answers = generate(model, surgekit.load_tokenizer(folder), items, batch_size)
    right = [check(item, answer) for item, answer in zip(items, answers, strict=True)]
    unseen = [ok for item, ok in zip(items, right, strict=True) if item["unseen"]]
    seen = [ok for item, ok in zip(items, right, strict=True) if not item["unseen"]]
    return {
        "accuracy": sum(right) / len(right),
        "seen_templates": sum(seen) / len(seen) if seen else None,
        "unseen_templates": sum(unseen) / len(unseen) if unseen else None,
        "seconds": round(time.perf_counter() - started, 1),
    }


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    items: list[dict[str, Any]],
    batch_size: int,
    max_new_tokens: int = 224,
) -> list[str]:
    """Greedy answers, in batches of prompts alike in length (padded on the left)."""
    tokenizer.padding_side = "left"
    texts = [
        str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": item["prompt"]}],
                tokenize=False,
                add_generation_prompt=True,
            )
        )
        for item in items
    ]
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    answers = [""] * len(texts)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        inputs = tokenizer(
            [texts[i] for i in batch],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        output: Any = model.generate(  # pyright: ignore[reportCallIssue]
            **inputs, do_sample=False, max_new_tokens=max_new_tokens
        )
        new = output[:, inputs["input_ids"].shape[1] :]
        decoded = tokenizer.batch_decode(new, skip_special_tokens=True)
        for i, text in zip(batch, decoded, strict=True):
            answers[i] = text
    return answers


def _items(domain: str, split: str) -> list[dict[str, Any]]:
    text = (HERE / "data" / domain / f"{split}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _say(domain: str, name: str, row: dict[str, Any]) -> None:
    print(
        f"{domain:9} {name:24} {100 * row['accuracy']:5.1f} %   seen templates "
        f"{_percent(row['seen_templates'])}, unseen {_percent(row['unseen_templates'])}"
        f"   {row['seconds']} s",
        flush=True,
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


if __name__ == "__main__":
    main()
