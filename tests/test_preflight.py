"""Pre-flight: what is found before any work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.files import LEFTOVER
from surgekit.pipeline.preflight import Finding, preflight
from surgekit.pipeline.progress import Reporter
from surgekit.pipeline.run_directory import RunDirectory
from surgekit.states.prompts import read_prompts

from .runs import document, make_world, recipe
from .tiny import jsonl, prompts


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def found(world: Path, level: str, **changes: Any) -> list[str]:
    return [f.message for f in preflight(recipe(world, **changes)) if f.level == level]


def test_a_good_recipe_gets_notes_and_what_is_not_looked_at(world: Path) -> None:
    open_point, table, estimate = preflight(recipe(world))
    assert open_point.level == "unverified"
    assert "each expert is better than the base" in open_point.message
    assert (table.level, estimate.level) == ("note", "note")
    assert "rows of the position tables" in table.message
    for word in ("tokens", "MiB to write", "GiB of memory", "on this processor"):
        assert word in estimate.message
    few_rows = [{"module": "darts", "max_positions": 16}]
    assert len(found(world, "note", surgery=few_rows)) == 1


@pytest.mark.parametrize(
    ("split", "count", "few"),
    [("calibration", 9, True), ("validation", 9, True), ("test", 9, True)]
    + [(s, 10, False) for s in ("calibration", "validation", "test")],
)
def test_a_set_of_few_prompts_is_named(world: Path, split: str, count: int, few: bool) -> None:
    file = jsonl(world / "data" / f"few-{split}.jsonl", prompts(count, f"few {split}"))
    domains = document()["domains"]
    domains["math"][split] = str(file)
    warnings = [w for w in found(world, "warning", domains=domains) if "prompts;" in w]
    assert [w[: w.index(":")] for w in warnings] == [f"domains.math.{split}"] * few


def test_the_items_that_a_seed_draws_are_counted(world: Path) -> None:
    file = jsonl(world / "data" / "pool.jsonl", prompts(40, "pool"))
    domains = document()["domains"]
    domains["math"]["calibration"] = {"file": str(file), "items": 9}
    (warning,) = found(world, "warning", domains=domains, seeds=[0, 1, 2, 3])
    assert warning.startswith("domains.math.calibration: 9 prompts;")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"base": "./nowhere"}, True),
        ({"device": "cuda:99"}, True),
        ({"merge": {"merge_method": "bogus"}}, True),
        ({}, False),
    ],
)
def test_after_an_error_the_rest_is_named_as_not_verified(
    world: Path, change: dict[str, Any], named: bool
) -> None:
    said = found(world, "unverified", **change)
    assert any(s.startswith("lengths of prompts, disk, memory") for s in said) is named
    assert len(said) == 1
    estimates = [s for s in found(world, "note", **change) if "of memory" in s]
    assert bool(estimates) is not named


def test_an_unknown_merge_method_is_an_error(world: Path) -> None:
    (error,) = found(world, "error", merge={"merge_method": "bogus"})
    assert "unknown merge_method 'bogus'" in error
    assert "task_arithmetic" in error


def test_messages_do_not_go_with_the_plain_format(world: Path) -> None:
    chat = jsonl(
        world / "data" / "chat.jsonl",
        [{"messages": [{"role": "user", "content": f"a question {i}"}]} for i in range(4)],
    )
    domains = document()["domains"]
    domains["math"] |= {"format": "plain", "test": str(chat)}
    assert any("format 'plain'" in e for e in found(world, "error", domains=domains))


def test_roles_of_a_template_of_its_own_are_named(world: Path) -> None:
    turns = [{"role": r, "content": f"it is {r}"} for r in ("user", "critic", "assistant")]
    chat = jsonl(world / "data" / "critic.jsonl", [{"messages": turns}] * 12)
    domains = document()["domains"]
    domains["math"] |= {"test": str(chat)}
    (warning,) = [w for w in found(world, "warning", domains=domains) if "role" in w]
    assert warning.startswith("domains.math.test: messages of the role 'critic'; a chat template")


@pytest.mark.parametrize("text", ["both", "response"])
def test_empty_responses_are_none(world: Path, text: str) -> None:
    empty = [p | {"response": ""} for p in prompts(10, "without an answer")]
    file = jsonl(world / "data" / "empty.jsonl", empty)
    domains = document()["domains"]
    domains["math"] |= {"calibration": str(file)}
    surgery = [{"module": "linear", "text": text}]
    level = "error" if text == "response" else "warning"
    (said,) = [m for m in found(world, level, domains=domains, surgery=surgery) if "empty" in m]
    assert said.startswith("domains.math.calibration: ")


def test_tasks_that_are_not_run_are_named(world: Path) -> None:
    domains = document()["domains"]
    domains["math"]["tasks"] = ["gsm8k"]
    (warning,) = found(world, "warning", domains=domains)
    assert warning.startswith("domains.math.tasks")


@pytest.mark.parametrize(
    ("one", "other"),
    [("calibration", "test"), ("validation", "test"), ("calibration", "validation")],
)
def test_prompts_in_two_sets_are_an_error(world: Path, one: str, other: str) -> None:
    shared = prompts(10, f"code {one}")[:1] + prompts(9, f"only {one} {other}")
    file = jsonl(world / "data" / f"{one}-{other}.jsonl", shared)
    domains = document()["domains"]
    domains["code"][other] = str(file)
    (error,) = found(world, "error", domains=domains)
    assert f"1 prompts stand in {one} and in {other}" in error


def test_errors_come_first(world: Path) -> None:
    domains = document()["domains"]
    domains["math"]["tasks"] = ["gsm8k"]
    levels = [f.level for f in preflight(recipe(world, domains=domains, base="./nowhere"))]
    assert levels == sorted(levels, key=("error", "warning", "unverified", "note").index)
    assert levels[0] == "error"
    assert str(Finding("warning", "x")) == "warning: x"


def test_check_prints_one_line_a_finding_and_the_same_as_json(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    domains = document()["domains"]
    domains["math"]["tasks"] = ["demo"]
    file = world / "told.yaml"
    file.write_text(yaml.safe_dump(document(domains=domains)), encoding="utf-8")
    wanted = ["check", str(file), "--out", str(world / "runs" / "told")]
    assert command(wanted) == 0
    lines = capsys.readouterr().out.splitlines()
    assert command([*wanted, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert [f["level"] for f in told["findings"]] == ["warning", "unverified", "note", "note"]
    begins = ["warning: domains.math.tasks", "unverified: whether each expert", "rows of", "about"]
    assert len(lines) == 5
    for line, beginning, finding in zip(lines, begins, told["findings"], strict=False):
        assert line.startswith(beginning)
        assert finding["message"].startswith(beginning.split(": ")[-1])
    assert lines[-1] == "ready to run (1 warning, 1 not verified)"
    assert not (world / "runs").exists()


def test_check_deep_loads_the_models(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = world / "deep.yaml"
    file.write_text(yaml.safe_dump(document()), encoding="utf-8")
    assert command(["check", str(file), "--deep"]) == 0
    out = capsys.readouterr().out
    assert "--deep" not in out
    assert "the expert's loss on its own domain" in out or "loss on 10 validation prompts" in out


def test_a_run_names_what_is_not_verified_and_not_what_it_looks_at_itself(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a model too large to read in passing: a run reads it anyway.
    monkeypatch.setattr("surgekit.pipeline.preflight.merge.CHEAP_BYTES", 0)
    levels = [f.level for f in preflight(recipe(world), beginning=True)]
    assert "unverified" not in levels
    assert len(found(world, "unverified")) == 2  # the values, and the experts
    # A merge by a foreign tool has a record of its own form.
    brought = tmp_path / "brought"
    shutil.copytree(world / "math", brought)
    (brought / "mergekit_config.yml").write_text("- no mapping", encoding="utf-8")
    file = world / "brought.yaml"
    changes = {"merge": {"folder": str(brought)}, "surgery": [{"module": "mean-shift"}]}
    file.write_text(yaml.safe_dump(document(**changes)), encoding="utf-8")
    assert command(["run", str(file), "--out", str(tmp_path / "run")]) == 0
    assert "unverified: what the merge was made of" in capsys.readouterr().err


def test_a_misspelt_prompt_key_is_named(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "p.jsonl", [{"prompt": "a", "respons": "b"}])
    with pytest.raises(InputError, match=r"line 1: unknown key 'respons'; did you mean 'response'"):
        read_prompts(file)
    own_keys = {"prompt": "a", "response": "b", "problem": "c", "answer": "d", "template": "e"}
    assert len(read_prompts(jsonl(tmp_path / "q.jsonl", [own_keys]))) == 1


def test_what_a_killed_run_left_half_written_goes_when_the_next_begins(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "models" / ".math.part-123").mkdir(parents=True)
    (run / "models" / ".math.part-123" / "model.safetensors").write_bytes(b"half")
    (run / "stages").mkdir()
    (run / "stages" / ".merge.json.part-7").write_text("{")
    (run / "adapters" / "math" / ".seeds" / "1").mkdir(parents=True)
    with RunDirectory.open(run, Reporter()):
        assert [p for p in run.rglob(".*") if LEFTOVER.fullmatch(p.name)] == []
        assert (run / "adapters" / "math" / ".seeds" / "1").is_dir()
