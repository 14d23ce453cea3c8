"""Tests of the code domain and of the sandbox that checks its answers."""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import random
import time
from typing import Any

import pytest
from demo.domains import code_tasks
from demo.domains.sandbox import run_asserts
from demo.domains.splits import SIZES

Splits = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return code_tasks.generate(0)


def _everything(splits: Splits) -> list[dict[str, Any]]:
    return [item for items in splits.values() for item in items]


def test_sizes_and_fields(splits: Splits) -> None:
    assert {split: len(items) for split, items in splits.items()} == SIZES
    for item in _everything(splits):
        assert len(item["asserts"]) >= 4
        assert len({line.partition(" == ")[2] for line in item["asserts"]}) > 1
        assert f"`{item['entry_point']}(" in item["prompt"]
        assert item["response"].startswith("```python\ndef ")
        assert item["response"].endswith("\n```")
        assert 150 < len(item["prompt"]) + len(item["response"]) < 620
    assert len({item["id"] for item in _everything(splits)}) == sum(SIZES.values())
    json.dumps(splits)


def test_same_seed_same_items() -> None:
    sizes = {"train": 100, "calibration": 20, "validation": 20, "test": 30}
    assert code_tasks.generate(3, sizes) == code_tasks.generate(3, sizes)
    assert code_tasks.generate(3, sizes) != code_tasks.generate(4, sizes)


def test_train_size_leaves_the_other_splits_alone(splits: Splits) -> None:
    small = code_tasks.generate(0, {**SIZES, "train": 5})
    assert {k: v for k, v in small.items() if k != "train"} == {
        k: v for k, v in splits.items() if k != "train"
    }


def test_no_problem_in_two_splits(splits: Splits) -> None:
    problems = {split: {item["problem"] for item in items} for split, items in splits.items()}
    for split, own in problems.items():
        others = set().union(*(p for name, p in problems.items() if name != split))
        assert not own & others
        if split != "train":
            assert len(own) == len(splits[split])


def test_unseen_templates_only_in_test(splits: Splits) -> None:
    seen = {template.name for template in code_tasks.SEEN}
    unseen = {template.name for template in code_tasks.UNSEEN}
    assert len(seen) >= 40
    assert len(unseen) >= 10
    assert not seen & unseen
    for split, items in splits.items():
        used = {item["template"] for item in items}
        assert used <= (seen | unseen if split == "test" else seen)
    assert {i["template"] for i in splits["train"]} == seen
    assert {i["template"] for i in splits["test"] if i["unseen"]} == unseen


def test_many_distinct_problems() -> None:
    rng = random.Random(0)
    problems = {t.build(rng)["problem"] for t in code_tasks.SEEN for _ in range(60)}
    assert len(problems) > 2000


def test_references_pass_their_asserts(splits: Splits) -> None:
    """One subprocess runs all references, each in a namespace of its own."""
    items = [i for split in ("calibration", "validation", "test") for i in splits[split]]
    sources = [
        "\n".join([code_tasks.extract_code(item["response"]), *item["asserts"]]) for item in items
    ]
    program = f"for source in {sources!r}:\n    exec(source, {{}})"
    assert run_asserts(program, [], seconds=20)


def test_names_shadow_nothing(splits: Splits) -> None:
    taboo = set(dir(builtins)) | set(keyword.kwlist) | set(keyword.softkwlist)
    for item in _everything(splits):
        tree = ast.parse(code_tasks.extract_code(item["response"]))
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        assert function.name == item["entry_point"]
        assert ast.get_docstring(function)
        params = [arg.arg for arg in function.args.args]
        stored = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        bound = {function.name, *params, *stored}
        assert not bound & taboo
        assert function.name not in {*params, *stored}
        if item["template"] != "count_steps":
            assert not stored & set(params)


def test_check_accepts_references_and_refuses_others(splits: Splits) -> None:
    items = splits["test"][:6]
    references = [item["response"] for item in items]
    assert code_tasks.check_many(items, references) == [True] * 6
    wrong = [f"```python\ndef {i['entry_point']}(*args):\n    return 'no'\n```" for i in items]
    assert code_tasks.check_many(items, wrong) == [False] * 6
    with pytest.raises(ValueError, match="argument"):
        code_tasks.check_many(items, references[:2])


ITEM = {"entry_point": "f_x", "asserts": ["assert f_x(1) == 2", "assert f_x(0) == 1"]}
GOOD = "def f_x(n):\n    return n + 1\n"


@pytest.mark.parametrize(
    "response",
    [
        GOOD,
        f"```python\n{GOOD}```",
        f"Here it is:\n```\n{GOOD}```\nand ```python\nbroken(\n```",
        f"```python\n{GOOD}",
        f"from __future__ import annotations\nprint('hello')\n{GOOD}",
    ],
)
def test_check_accepts(response: str) -> None:
    assert code_tasks.check(ITEM, response)


@pytest.mark.parametrize(
    "program",
    [
        "def f_x(n):\n    return n + 2\n",
        "def f_x(n)\n    return n + 1\n",
        "import sys\nf_x = 1\nsys.exit(0)\n",
        "import os\nf_x = 1\nos._exit(0)\n",
        "def f_x(n):\n    raise SystemExit(0)\n",
        "f_x = bytearray(1 << 33)\n" + GOOD,
        "f_x = [0] * (1 << 40)\n" + GOOD,
        "import os\nos.fork()\n" + GOOD,
        "import subprocess\nsubprocess.run(['true'])\n" + GOOD,
        "open('big', 'wb').write(bytes(8 << 20))\n" + GOOD,
        "f_x = '\ud800'\n" + GOOD,
        "f_x = '\0'\n" + GOOD,
        "",
        "I can't do f_x.",
    ],
)
def test_check_refuses(program: str) -> None:
    assert not code_tasks.check(ITEM, program)


@pytest.mark.parametrize(
    "program",
    [
        "while True:\n    pass\n",
        "import time\ntime.sleep(60)\n",
        "while True:\n    print('x' * 1000)\n",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
    ],
)
def test_runaway_programs_are_stopped(program: str) -> None:
    start = time.monotonic()
    assert not run_asserts(program, [], seconds=1.0)
    assert time.monotonic() - start < 4.0
