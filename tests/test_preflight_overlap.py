"""What stands in two sets of prompts, or in a benchmark, is found; what only looks so is not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surgekit.errors import InputError
from surgekit.pipeline.preflight import overlap, text
from surgekit.pipeline.preflight.benchmarks import (
    SKETCHES,
    Sketches,
    load_sketches,
    make_sketches,
    save_sketches,
)
from surgekit.pipeline.preflight.text import Text, near_matches, nearly_same
from surgekit.pipeline.prompts import DomainPrompts
from surgekit.recipe import Recipe, parse_recipe
from surgekit.states.prompts import Prompt

STORY = (
    "A gardener plants 14 rows of beans on Monday and 9 rows of peas on Tuesday, and every row "
    "takes her twenty minutes to water with the old can. How long does she water them all?"
)

QUESTION = "How long does she water them all?"


def edited(find: str, replacement: str, whole: str = STORY) -> str:
    assert find in whole
    return whole.replace(find, replacement, 1)


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        (STORY, STORY.upper().replace(",", ""), True),
        (STORY, edited("takes her", "her takes"), True),
        (STORY, edited("old ", ""), True),
        (STORY, edited("gardener", "farmer"), True),
        (STORY, f"{QUESTION} {edited(' ' + QUESTION, '')}", True),
        (STORY, "Solve this. " + STORY, True),
        ("It costs 1,000 dollars, doesn't it?", "it costs 1000 dollars, doesn’t it", True),
        # Items of one template: a number, a name, or the one word that matters.
        (STORY, edited("14", "15"), False),
        (STORY, edited("Monday", "Friday"), False),
        ("What is the boiling point of neon?", "What is the boiling point of oxygen?", False),
        ("Name the capital of Peru.", "Name the capital of Chad.", False),
        # Common words alone.
        (STORY, "How long does she take to water the rows of beans and peas with a can?", False),
        ("Why?", "Why not?", False),
        ("", "", False),
    ],
)
def test_two_texts_are_nearly_the_same_where_little_is_edited(
    one: str, other: str, near: bool
) -> None:
    assert nearly_same(Text(one), Text(other)) is near
    assert nearly_same(Text(other), Text(one)) is near


def sentences(count: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("an", "el", "im", "or", "usk", "ade", "y")]
    return [" ".join(drawn.choices(words, k=drawn.randint(8, 30))) for _ in range(count)]


def test_the_index_finds_what_comparing_all_pairs_finds() -> None:
    first = sentences(60, 0)
    drawn = random.Random(1)
    second = sentences(100, 2)
    for sentence in first[:40]:
        words = sentence.split()
        for _ in range(drawn.randint(1, 4)):
            at = drawn.randrange(len(words))
            words[at : at + 1] = drawn.choice([[], [words[at], "extra"], ["other"]])
        second.append(" ".join(words))
    one, other = [Text(s) for s in first], [Text(s) for s in second]
    expected = {k for k, b in enumerate(other) if any(nearly_same(a, b) for a in one)}
    found, whole = near_matches(one, other)
    assert set(found) == expected
    assert 5 < len(expected) < 35
    assert whole
    assert all(nearly_same(one[i], other[k]) for k, i in found.items())


def test_a_pair_just_near_enough_is_found_among_all_that_is_rare() -> None:
    """39 of 55 words and pairs in common, and the 16 others are the rarest of all."""
    words = [f"w{c}" for c in "abcdefghijklmnopqrst"]
    one, other = Text(" ".join(words)), Text(" ".join([*words, *(f"x{c}" for c in "abcdefgh")]))
    assert len(other.shingles) == 55
    assert nearly_same(one, other)
    assert near_matches([one], [other]) == ({0: 0}, True)
    assert near_matches([other], [one]) == ({0: 0}, True)
    longer = Text(other.raw + " xi")
    assert near_matches([one], [longer]) == ({}, True)


def test_few_of_all_pairs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[None] = []

    def counting(one: Text, other: Text) -> bool:
        compared.append(None)
        return nearly_same(one, other)

    monkeypatch.setattr(text, "nearly_same", counting)
    few, many = [Text(s) for s in sentences(50, 3)], [Text(s) for s in sentences(10_000, 4)]
    assert near_matches(few, many) == ({}, True)
    assert len(compared) < 50 * 10_000 / 20


def test_a_search_that_would_take_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_MOST_COMPARISONS", 20)
    alike = [f"{STORY} The answer is not {i}." for i in range(40)]
    domains = {"garden": domain(alike[:20], [], alike[20:])}
    (finding,) = [f for f in overlap.check_overlap(domains) if f.level == "unverified"]
    assert "domains.garden.test" in finding.message


def domain(
    calibration: list[Any], validation: list[Any] | None = None, test: list[Any] | None = None
) -> DomainPrompts:
    given = {"calibration": calibration, "validation": validation or [], "test": test or []}
    splits = {
        split: [
            Prompt(prompt=item) if isinstance(item, str) else Prompt.model_validate(item)
            for item in items
        ]
        for split, items in given.items()
    }
    return DomainPrompts(splits, {0: list(range(len(calibration)))})


def answered(prompt: str, response: str) -> dict[str, str]:
    return {"prompt": prompt, "response": response}


A, B, C = sentences(3, 7)
LONG = "First count the rows, then add them up, then multiply by the minutes each takes."
FOUND: dict[str, tuple[dict[str, DomainPrompts], tuple[str, str]]] = {
    "the same in calibration and test": (
        {"a": domain([A, B], test=[C, A])},
        ("error", "1 prompts stand in calibration and in test"),
    ),
    "blanks, case and compatibility forms": (
        {"a": domain(["ﬁnd  the\nSum of 2 and 3", B], test=["Find the sum of ２ and 3"])},
        ("error", "1 prompts stand in calibration and in test"),
    ),
    "the same question as messages": (
        {
            "a": domain(
                [
                    {
                        "messages": [
                            {"role": "user", "content": A},
                            {"role": "assistant", "content": B},
                        ]
                    }
                ],
                validation=[A],
            )
        },
        ("error", "stand in calibration and in validation"),
    ),
    "nearly the same in validation and test": (
        {"a": domain([A], [STORY], [edited("old ", "")])},
        ("warning", "domains.a.test: 1 prompt is nearly the same as one of validation"),
    ),
    "the same in another domain": (
        {"a": domain([A]), "b": domain([B], test=[A])},
        ("warning", "domains.b.test: 1 prompts stand in domains.a.calibration too"),
    ),
    "nearly the same in another domain": (
        {"a": domain([STORY]), "b": domain([B], test=[STORY.replace(",", "")])},
        ("warning", "nearly the same as one of domains.a.calibration"),
    ),
    "twice in one file": (
        {"a": domain([A, B, A.upper(), A])},
        ("warning", "domains.a.calibration: 2 of 4 prompts stand there before"),
    ),
    "a long response under another prompt": (
        {"a": domain([answered(A, LONG)], test=[answered(B, LONG.upper())])},
        ("warning", "domains.a.test: 1 responses are those of calibration prompts"),
    ),
}
NOT_FOUND: dict[str, dict[str, DomainPrompts]] = {
    "different prompts": {"a": domain([A], [B], [C])},
    "another number": {"a": domain([STORY], test=[edited("14", "15")])},
    "fitted on in two domains": {"a": domain([A]), "b": domain([A])},
    "a short response": {"a": domain([answered(A, "Yes.")], test=[answered(B, "Yes.")])},
    "one word longer": {"a": domain([A], test=[f"{A} {B}"])},
}


@pytest.mark.parametrize("name", FOUND)
def test_what_stands_in_two_sets_is_found(name: str) -> None:
    domains, (level, said) = FOUND[name]
    (finding,) = overlap.check_overlap(domains)
    assert finding.level == level
    assert said in finding.message
    assert len(finding.message) < 400


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_only_looks_like_it_is_not_found(name: str) -> None:
    assert overlap.check_overlap(NOT_FOUND[name]) == []


SHORT_ITEM = "Name three rivers of Peru"
ITEMS = [*sentences(200, 11), STORY, SHORT_ITEM]
KNOWN = make_sketches({"SumBench test": ITEMS, "CodeBench": sentences(200, 12)})


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (STORY, True),
        (STORY.upper(), True),
        ("Below is an instruction.\n### Instruction:\n" + STORY + "\n### Response:\n", True),
        (edited("takes her", "her takes"), True),
        (edited("gardener", "farmer"), True),
        ("\n".join([*sentences(5, 13), STORY, *sentences(5, 14)]), True),
        (SHORT_ITEM + "  ", True),
        (edited("14", "15"), False),
        (edited("Monday", "Friday"), False),
        ("How long does she water them all?", False),
        ("Name three rivers of Chad", False),
        ("Please: " + SHORT_ITEM + ", and then three of its lakes", False),  # too short to be sure
        (" ".join(sentences(50, 15)), False),
    ],
)
def test_items_of_a_benchmark_are_found_by_their_sketch(prompt: str, found: bool) -> None:
    assert KNOWN.find(Text(prompt)) == ({"SumBench test"} if found else set())


def test_most_lightly_edited_items_are_found_and_hardly_any_other_prompt() -> None:
    drawn = random.Random(5)
    long = [item.split() for item in ITEMS[:200] if len(item.split()) >= 12]
    missed = 0
    for words in long:
        del words[drawn.randrange(len(words))]
        missed += not KNOWN.find(Text(" ".join(words)))
    assert missed <= len(long) / 50
    assert sum(bool(KNOWN.find(Text(s))) for s in sentences(2000, 16)) == 0


def of_tasks(*tasks: str) -> Recipe:
    text = "base: {model: ./base}\nmerge: {folder: ./merged}\ndomains:\n"
    text += f"  sums: {{expert: ./sums, calibration: c, test: t, tasks: {list(tasks)}}}\n"
    return parse_recipe(text, Path("/nowhere"))


@pytest.mark.parametrize(
    ("tasks", "level"),
    [
        ((), "warning"),
        (("other",), "warning"),
        (("sumbench_cot",), "error"),
        (("sum-bench",), "error"),
    ],
)
def test_an_item_of_a_benchmark_that_is_to_be_scored_on_is_an_error(
    tasks: tuple[str, ...], level: str
) -> None:
    prompts = {"sums": domain([STORY, A], [B], [ITEMS[0]])}
    (finding,) = overlap.check_benchmarks(of_tasks(*tasks), prompts, KNOWN)
    assert finding.level == level
    assert "domains.sums.calibration: 1 prompt is an item of SumBench test" in finding.message


def test_testing_on_a_benchmark_is_what_it_is_for() -> None:
    prompts = {"sums": domain([A], [B], ITEMS[:10])}
    assert overlap.check_benchmarks(of_tasks("sumbench"), prompts, KNOWN) == []


def test_sketches_come_back_from_their_file(tmp_path: Path) -> None:
    save_sketches(KNOWN, tmp_path / "s.npz")
    again = load_sketches(tmp_path / "s.npz")
    assert again.titles == KNOWN.titles
    for one, other in zip(KNOWN.pairs, again.pairs, strict=True):
        assert np.array_equal(one, other)
    assert again.find(Text(edited("old ", ""))) == {"SumBench test"}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x93NUMPY"])
def test_a_damaged_file_of_sketches_leaves_that_unverified(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.npz").write_bytes(content)
    with pytest.raises(InputError, match="expected sketches"):
        load_sketches(tmp_path / "s.npz")


def test_the_package_carries_sketches_of_the_benchmarks_and_no_text() -> None:
    known = load_sketches()
    counts = {title: int((known.owners == i).sum()) for i, title in enumerate(known.titles)}
    assert counts == {
        "AlpacaEval": 553,
        "AlpacaEval and Self-Instruct's test tasks": 252,
        "GSM8K test": 1319,
        "MBPP": 427,
        "IFEval": 541,
        "HumanEval": 164,
    }
    assert SKETCHES.stat().st_size < 200 * 1024
    assert isinstance(known, Sketches)
    with np.load(SKETCHES, allow_pickle=False) as file:
        assert {file[k].dtype.kind for k in file.files} == {"u", "U"}
        assert file["titles"].nbytes < 2000
