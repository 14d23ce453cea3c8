"""The code domain: small Python functions to write, checked by running asserts.

An item has ``prompt``, ``response``, ``entry_point``, ``asserts`` and ``problem``. The problem is
the signature of what is asked (template, choices and constants, without names and wording); no
problem occurs in two splits, and none twice outside the train split.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .code_lists import LIST_TEMPLATES
from .code_numbers import NUMBER_TEMPLATES
from .code_texts import TEXT_TEMPLATES
from .code_unseen import UNSEEN_TEMPLATES
from .sandbox import run_asserts
from .splits import SIZES, Template, make_splits, normalise

NAME = "code"
SEEN = (*LIST_TEMPLATES, *TEXT_TEMPLATES, *NUMBER_TEMPLATES)
UNSEEN = UNSEEN_TEMPLATES

MAX_TRIES = 500
_TRAIN_SEED_STEP = 1_000_003
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)


def _restricted(template: Template, accept: Callable[[dict[str, Any]], bool]) -> Template:
    """Return ``template`` with a build that redraws until ``accept`` takes the item."""

    def build(rng: random.Random) -> dict[str, Any]:
        for _ in range(MAX_TRIES):
            item = template.build(rng)
            if accept(item):
                return item
        raise RuntimeError(f"template {template.name!r} has no fresh problem in {MAX_TRIES} draws")

    return Template(template.name, build)


def _all_restricted(
    templates: Collection[Template], accept: Callable[[dict[str, Any]], bool]
) -> tuple[Template, ...]:
    return tuple(_restricted(template, accept) for template in templates)


def generate(seed: int = 0, sizes: Mapping[str, int] = SIZES) -> dict[str, list[dict[str, Any]]]:
    """Return the splits of the domain, the same for the same ``seed`` and ``sizes``.

    The evaluation splits are drawn first and hold every problem once. The train split may hold a
    problem several times (with other names and wording) but none of the evaluation splits.
    Raises RuntimeError when a template runs out of problems or a problem lands in two splits.
    """
    taken: set[str] = set()

    def fresh(item: dict[str, Any]) -> bool:
        if item["problem"] in taken:
            return False
        taken.add(item["problem"])
        return True

    held = {split: count for split, count in sizes.items() if split != "train"}
    drawn = make_splits(
        NAME, _all_restricted(SEEN, fresh), _all_restricted(UNSEEN, fresh), seed, held
    )
    prompts = {normalise(item["prompt"]) for items in drawn.values() for item in items}

    def unheld(item: dict[str, Any]) -> bool:
        return item["problem"] not in taken and normalise(item["prompt"]) not in prompts

    if "train" in sizes:
        seen = _all_restricted(SEEN, unheld)
        step = seed + _TRAIN_SEED_STEP
        drawn |= make_splits(NAME, seen, (), step, {"train": sizes["train"]})
    owner: dict[str, str] = {}
    for split, items in drawn.items():
        for item in items:
            if owner.setdefault(item["problem"], split) != split:
                raise RuntimeError(f"problem {item['problem']!r} is in two splits")
    return {split: drawn[split] for split in sizes}


def extract_code(response: str) -> str:
    """Return the first fenced block of ``response``, or all of it when there is none."""
    match = _FENCE.search(response)
    return match.group(1) if match else response


def check(item: Mapping[str, Any], response: str) -> bool:
    """Return whether the program in ``response`` passes every assert of ``item``."""
    code = extract_code(response)
    if item["entry_point"] not in code:
        return False
    return run_asserts(code, item["asserts"])


def check_many(
    items: Sequence[Mapping[str, Any]], responses: Sequence[str], workers: int = 2
) -> list[bool]:
    """Return ``check`` of each item with its response, ``workers`` subprocesses at a time.

    Raises ValueError when the two sequences differ in length.
    """
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(lambda pair: check(*pair), zip(items, responses, strict=True)))
