"""What is wrong in a recipe is named: the key, its line, and the key that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgekit.errors import InputError
from surgekit.recipe import load_recipe

from .recipes import FULL, SMALL, added, edited, parsed


def problem(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parsed(text)
    message = str(caught.value)
    assert message.startswith("R.yaml"), message
    assert "\n" not in message
    assert "pydantic" not in message
    return message


HERE = "  # <-"
"""Marks the line that a message must name."""


WRONG: dict[str, tuple[str, str]] = {
    "no base": (edited("base: ./base\n", ""), "'base' is missing"),
    "base null": (edited("base: ./base", f"base:{HERE}"), "base: "),
    "base number": (edited("base: ./base", f"base: 3{HERE}"), "base: "),
    "base is a LoRA": (edited("./base", f"{{lora: x}}{HERE}"), "base: the base cannot be a LoRA"),
    "base twice": (edited("./base", f"{{model: x, gguf: y}}{HERE}"), "model and gguf"),
    "base empty": (edited("./base", f"{{revision: x}}{HERE}"), "found none"),
    "no domains": (SMALL[: SMALL.index("domains")] + "merge: x\n", "'domains' is missing"),
    "domains empty": (f"base: b\nmerge: m\ndomains: {{}}{HERE}\n", "domains: "),
    "domains a list": (f"base: b\nmerge: m\ndomains: [math]{HERE}\n", "domains: "),
    "domain null": (f"base: b\nmerge: m\ndomains:\n  math:{HERE}\n", "domains.math: "),
    "domain reserved": (edited("  math:", f"  merged:{HERE}"), "domains.merged: "),
    "domain reserved too": (edited("  math:", f"  method:{HERE}"), "domains.method: "),
    "domain with a slash": (edited("  math:", f"  a/b:{HERE}"), "domains.a/b: "),
    "domain not ASCII": (edited("  math:", f"  mäth:{HERE}"), "domains.mäth: "),
    "domain a number": (edited("  math:", f"  7:{HERE}"), "domains.7: "),
    "domain with a dash": (edited("  math:", f"  -math:{HERE}"), "domains.-math: "),
    "no expert": (edited("    expert: ./math\n", ""), "'domains.math.expert' is missing"),
    "expert empty": (edited("./math", f"{{}}{HERE}"), "domains.math.expert: "),
    "format a list": (edited("    test:", f"    format: [x]{HERE}\n    test:"), "math.format: "),
    "tasks a text": (edited("    test:", f"    tasks: x{HERE}\n    test:"), "math.tasks: "),
    "file a list": (edited("cal.jsonl", f"[a, b]{HERE}"), "math.calibration: "),
    "file missing": (edited("cal.jsonl", f"{{items: 3}}{HERE}"), "calibration.file' is missing"),
    "items zero": (edited("cal.jsonl", f"{{file: c, items: 0}}{HERE}"), "items: "),
    "items a word": (edited("cal.jsonl", f"{{file: c, items: few}}{HERE}"), "'few'"),
    "items half": (edited("cal.jsonl", f"{{file: c, items: 2.5}}{HERE}"), "2.5"),
    "no merge": (edited("merge: {merge_method: linear}\n", ""), "'merge' is missing"),
    "merge a number": (edited("{merge_method: linear}", f"3{HERE}"), "merge: "),
    "merge a list": (edited("{merge_method: linear}", f"[a]{HERE}"), "merge: "),
    "folder null": (edited("{merge_method: linear}", f"{{folder: }}{HERE}"), "merge: "),
    "folder and more": (
        edited("{merge_method: linear}", f"{{folder: x, merge_method: ties}}{HERE}"),
        "merge: a merge at hand",
    ),
    "surgery empty": (added(f"surgery: []{HERE}"), "surgery: "),
    "surgery null": (added(f"surgery:{HERE}"), "surgery: "),
    "surgery a mapping": (added(f"surgery: {{module: darts}}{HERE}"), "surgery: "),
    "surgery a word": (added(f"surgery: [darts]{HERE}"), "surgery.0: "),
    "no module": (added(f"surgery:\n  - {{loss: l1}}{HERE}"), "surgery.0.module' is missing"),
    "module": (added(f"surgery:\n  - module: drats{HERE}"), "'darts'"),
    "module in a list": (added(f"surgery:\n  - module: [linear, x]{HERE}"), "found 'x'"),
    "no modules": (added(f"surgery:\n  - module: linear\n  - module: []{HERE}"), "surgery.1: "),
    "loss": (added(f"surgery:\n  - module: darts\n    loss: l2{HERE}"), "surgery.0.loss: "),
    "loss of linear": (
        added(f"surgery:\n  - {{module: darts}}\n  - {{module: linear, loss: l1}}{HERE}"),
        "surgery.1: module linear is solved in closed form",
    ),
    "no loss": (added(f"surgery:\n  - {{module: darts, loss: null}}{HERE}"), "give it a loss"),
    "text": (added(f"surgery:\n  - module: darts\n    text: answer{HERE}"), "surgery.0.text: "),
    "rank zero": (added(f"surgery:\n  - module: darts\n    rank: 0{HERE}"), "surgery.0.rank: "),
    "rank of none": (added(f"surgery:\n  - {{module: table, rank: 4}}{HERE}"), "has no rank"),
    "no table": (
        added(f"surgery:\n  - {{module: standard, max_positions: 9}}{HERE}"),
        "no position table",
    ),
    "iterations": (added(f"surgery:\n  - module: add\n    iterations: 0{HERE}"), "iterations: "),
    "rate": (added(f"surgery:\n  - module: add\n    learning_rate: -1{HERE}"), "learning_rate: "),
    "rate infinite": (added(f"surgery:\n  - module: add\n    learning_rate: .inf{HERE}"), "inf"),
    "ridge": (
        added(f"surgery:\n  - {{module: linear, ridge: -1}}{HERE}"),
        "ridge must be positive",
    ),
    "ridge rule": (
        added(f"surgery:\n  - module: linear\n    ridge: lo{HERE}"),
        "surgery.0.ridge: ",
    ),
    "name a path": (added(f"surgery:\n  - module: linear\n    name: ../x{HERE}"), "0.name: "),
    "name empty": (added(f"surgery:\n  - module: linear\n    name: ''{HERE}"), "0.name: "),
    "name for none": (added(f"surgery:\n  - module: linear\n    name: __base__{HERE}"), "0.name: "),
    "same methods": (added(f"surgery:{HERE}\n  - module: linear\n  - module: linear"), "give one"),
    "one name": (added(f"surgery:\n  - {{module: [table, add], name: x}}{HERE}"), "one method"),
    "same names": (
        added(f"surgery:{HERE}\n  - {{module: add, name: x}}\n  - {{module: table, name: x}}"),
        "two methods are called 'x'",
    ),
    "seeds twice": (added(f"seeds: [1, 1]{HERE}"), "seeds: expected distinct seeds"),
    "seeds negative": (added(f"seeds: [-1]{HERE}"), "seeds: "),
    "seeds none": (added(f"seeds: []{HERE}"), "seeds: "),
    "seeds a number": (added(f"seeds: 3{HERE}"), "seeds: "),
    "seeds words": (added(f"seeds: [0, a]{HERE}"), "seeds.1: "),
    "max_length": (added(f"max_length: 1{HERE}"), "max_length: "),
    "batch_size": (added(f"batch_size: 0{HERE}"), "batch_size: "),
    "position_bin": (added(f"position_bin: 0{HERE}"), "position_bin: "),
    "dtype": (added(f"dtype: int8{HERE}"), "dtype: "),
    "body a list": (added(f"body: [x]{HERE}"), "body: "),
    "key not a text": (added(f"1: 2{HERE}"), "1: "),
    "double key": (added(f"base: ./b{HERE}"), "'base' is given twice"),
    "double inside": (edited("cal.jsonl", f"{{file: a, file: b}}{HERE}"), "'file' is given twice"),
    "YAML bracket": (added(f"x: [1\ny: 2{HERE}"), "not YAML"),
    "YAML tab": (added(f"\tx: 1{HERE}"), "not YAML"),
    "YAML alias": (added(f"x: *y{HERE}"), "undefined alias"),
    "YAML tag": (added(f"x: !!python/name:os.system ''{HERE}"), "not YAML"),
    "YAML list as key": (added(f"? [a]{HERE}\n: 1"), "not YAML"),
    "two documents": (added(f"---{HERE}\nx: 1"), "another document"),
    "contains itself": (added(f"body: &a [*a]{HERE}"), "contains itself"),
    "no date": (added("body: 2020-13-45"), "is a date to YAML"),
    "no number": (added("seeds: !!int abc"), "abc"),
    "deep": (added("body: " + "[" * 3000 + "]" * 3000), "not YAML"),
    "control character": (added("body: \0"), "not YAML"),
    "path with a NUL": (edited("cal.jsonl", f'"a\\0b"{HERE}'), "path"),
    "path of half a letter": (edited("cal.jsonl", f'"a\\ud800b"{HERE}'), "path"),
    "home of nobody": (edited("./math", f'"~no_such_user/x"{HERE}'), "home"),
    "empty": ("", "expected a mapping"),
    "a word": ("hello", "expected a mapping"),
    "a list": ("[1, 2]", "expected a mapping"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_line(case: str) -> None:
    text, said = WRONG[case]
    message = problem(text)
    assert said in message
    marked = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith(HERE)]
    if marked:
        assert f"R.yaml, line {marked[0]}: " in message


LEVELS: dict[str, tuple[str, str]] = {
    "": ("", "base domains merge surgery seeds plain_text max_length batch_size dtype device "
         "position_bin body head"),
    "base": ("base: {KEY: x}", "model revision gguf package lora"),
    "domains.math": ("    KEY: x", "expert format calibration validation test tasks"),
    "domains.math.expert": ("    expert: {KEY: x}", "model revision gguf package lora"),
    "domains.math.calibration": ("    calibration: {KEY: x}", "file items"),
    "surgery.0": ("surgery: [{KEY: x}]", "module loss text rank max_positions iterations "
                  "learning_rate batch_size entropy_mean ridge weights name"),
    "plain_text": ("plain_text: {KEY: x}", "file items"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("level", "key"), [(level, key) for level, (_, keys) in LEVELS.items() for key in keys.split()]
)
def test_a_misspelt_key_is_answered_with_the_right_one(level: str, key: str) -> None:
    for wrong in {key[:-1] + "x", key + "s", key[1] + key[0] + key[2:]} - {key}:
        line = (LEVELS[level][0] or "KEY: x").replace("KEY", wrong) + HERE
        lines = SMALL.splitlines()
        start = line.split(":")[0] + ":"
        at = next((i for i, had in enumerate(lines) if had.startswith(start)), None)
        if level == "domains.math":
            lines.insert(3, line)
        elif at is None:
            lines.append(line)
        else:
            lines[at] = line
        text = "\n".join(lines)
        message = problem(text)
        number = 1 + next(i for i, had in enumerate(lines) if had.endswith(HERE))
        full = f"{level}.{wrong}" if level else wrong
        assert f"R.yaml, line {number}: unknown key '{full}'; did you mean '{key}'?" == message


def test_an_unknown_key_without_neighbours_gets_no_hint() -> None:
    assert problem(added("zzz: 1")) == "R.yaml, line 8: unknown key 'zzz'"


@pytest.mark.parametrize("name", ["int", "str", "float", "none", "file", "items"])
def test_names_of_types_are_good_names_of_domains(name: str) -> None:
    assert list(parsed(edited("  math:", f"  {name}:")).domains) == [name]
    message = problem(edited("  math:", f"  {name}:").replace("test:", "tset:"))
    assert message == f"R.yaml, line 6: unknown key 'domains.{name}.tset'; did you mean 'test'?"


def test_a_missing_or_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="recipe not found"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="recipe expected as UTF-8 text"):
        load_recipe(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="recipe expected as UTF-8 text"):
        load_recipe(tmp_path / "binary.yaml")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_is_refused_or_read(data: st.DataObject) -> None:
    text = FULL
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 1, 5, 40]))
        filler = st.sampled_from(["", ":", "- ", "[", "{", "}", "\n", "  ", "&a ", "*a", "!", "'"])
        text = text[:start] + data.draw(filler) + text[start + length :]
    try:
        recipe = parsed(text)
    except InputError:
        problem(text)
    else:
        assert recipe.methods()
