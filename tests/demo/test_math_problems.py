"""Tests of the math domain of the demonstration, its splits and its files."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from domains import math_problems, plain_text
from domains.splits import SIZES, UNSEEN_SHARE, Template, make_splits, normalise
from generate_data import main

NUMBERS = r"-?\d+(?: [-+x/] \d+)*"
EQUATION = re.compile(rf"({NUMBERS}) = (-?\d+)")

Splits = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return math_problems.generate(0)


def every(splits: Splits) -> list[dict[str, Any]]:
    return [item for items in splits.values() for item in items]


def value(expression: str) -> float:
    """Evaluate a chain of one kind of operator from left to right."""
    terms = expression.split(" ")
    result = float(terms[0])
    for operator, term in zip(terms[1::2], terms[2::2], strict=True):
        number = int(term)
        if operator == "+":
            result += number
        elif operator == "-":
            result -= number
        elif operator == "x":
            result *= number
        else:
            result /= number
    return result


def test_same_seed_gives_same_items_and_other_seed_other_ones(splits: Splits) -> None:
    assert math_problems.generate(0) == splits
    other = math_problems.generate(1)
    assert {i["prompt"] for i in every(other)} != {i["prompt"] for i in every(splits)}


def test_sizes_ids_and_keys(splits: Splits) -> None:
    assert {split: len(items) for split, items in splits.items()} == SIZES
    for split, items in splits.items():
        for index, item in enumerate(items):
            assert item["id"] == f"math-{split}-{index:04d}"
            assert list(item) == ["id", "template", "unseen", "prompt", "response", "answer"]


def test_no_prompt_occurs_twice(splits: Splits) -> None:
    prompts = [normalise(item["prompt"]) for item in every(splits)]
    assert len(set(prompts)) == len(prompts)


def test_enough_templates_and_unseen_ones_only_in_marked_test_items(splits: Splits) -> None:
    unseen = {template.name for template in math_problems.UNSEEN}
    seen = {template.name for template in math_problems.SEEN}
    assert len(seen | unseen) >= 36
    assert len(unseen) >= 10
    assert not seen & unseen
    for split, items in splits.items():
        for item in items:
            assert item["unseen"] == (item["template"] in unseen)
            assert split == "test" or not item["unseen"]
    marked = [item for item in splits["test"] if item["unseen"]]
    assert len(marked) == round(UNSEEN_SHARE * SIZES["test"])
    assert {item["template"] for item in marked} == unseen
    assert {item["template"] for item in splits["train"]} == seen


def test_references_pass_and_other_answers_fail(splits: Splits) -> None:
    for item in every(splits):
        assert math_problems.check(item, item["response"])
        body, _, _ = item["response"].rpartition("\n")
        assert not math_problems.check(item, f"{body}\nAnswer: {int(item['answer']) + 1}")
        assert not math_problems.check(item, body)


def test_every_equation_is_true_and_leads_to_the_answer(splits: Splits) -> None:
    for item in every(splits):
        found = EQUATION.findall(item["response"])
        # Every "=" must be part of an equation that the pattern understands.
        assert len(found) == item["response"].count("=") >= 2
        for left, right in found:
            assert value(left) == int(right), (item["id"], left, right)
            assert int(right) >= 0
        assert item["answer"] == found[-1][1]
        assert item["answer"].isdigit()
        assert int(item["answer"]) <= 400


def test_every_template_is_sound_over_many_draws() -> None:
    rng = random.Random(5)
    for template in math_problems.SEEN + math_problems.UNSEEN:
        for _ in range(150):
            item = template.build(rng)
            assert math_problems.check(item, item["response"])
            for left, right in EQUATION.findall(item["response"]):
                assert value(left) == int(right), (template.name, left, right)
                assert int(right) >= 1, (template.name, left, right)
            text = item["prompt"] + item["response"]
            assert "  " not in text
            assert not re.search(r"-\d", text), text
            assert not re.search(r"\b1 (?!point )\w+s\b", item["prompt"]), item["prompt"]


def test_lengths_stay_in_bounds(splits: Splits) -> None:
    # The tokenizer takes about four characters of words a token and every digit as one token.
    estimates = []
    for item in every(splits):
        text = f"{item['prompt']} {item['response']}"
        digits = sum(map(str.isdigit, text))
        estimates.append(digits + (len(text) - digits) / 4)
    assert min(estimates) >= 60
    assert max(estimates) <= 170


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("Answer: 1200", True),
        ("So it is\nanswer: $1,200.", True),
        ("**Answer: 1200**", True),
        ("**Answer:** 1,200", True),
        ("ANSWER: 1200.00", True),
        ("Answer: 7\nWait.\nAnswer: 1200", True),
        ("Answer: 1200\nAnswer: 7", False),
        ("Answer: -1200", False),
        ("Answer: 12", False),
        ("Answer: 1200 or 7", False),
        ("The answer is 1200", False),
        ("1200", False),
        ("", False),
    ],
)
def test_check_reads_the_last_answer_line(reply: str, right: bool) -> None:
    assert math_problems.check({"answer": "1200"}, reply) is right


def test_exhausted_template_is_named() -> None:
    narrow = Template("narrow", lambda rng: {"prompt": f"Say {rng.randint(1, 3)}", "response": ""})
    with pytest.raises(RuntimeError, match="narrow"):
        make_splits("toy", [narrow], [], 0, {"train": 4})


def test_train_size_does_not_change_the_other_splits(splits: Splits) -> None:
    small = make_splits("math", math_problems.SEEN, math_problems.UNSEEN, 0, {**SIZES, "train": 35})
    assert small["test"] == splits["test"]
    assert small["validation"] == splits["validation"]


def test_files_are_written(tmp_path: Path, splits: Splits) -> None:
    assert main(["--out", str(tmp_path), "--domains", "math"]) == 0
    assert not (tmp_path / "math/train.jsonl").exists()
    for split in ("calibration", "validation", "test"):
        text = (tmp_path / f"math/{split}.jsonl").read_text(encoding="utf-8")
        assert text.endswith("}\n")
        assert [json.loads(line) for line in text.splitlines()] == splits[split]
    assert main(["--out", str(tmp_path), "--domains", "math", "--with-train"]) == 0
    assert len((tmp_path / "math/train.jsonl").read_text().splitlines()) == SIZES["train"]


def test_plain_text_is_prose_of_the_asked_length() -> None:
    items = plain_text.generate(0)
    assert items == plain_text.generate(0)
    assert len({item["prompt"] for item in items}) == len(items) == 60
    for item in items:
        assert list(item) == ["prompt"]
        assert 60 <= len(item["prompt"].split()) <= 120
        assert not re.search(r"[?=`{}\n]|\d", item["prompt"])
