"""Pre-flight: what is found before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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


def test_a_good_recipe_gets_an_estimate_and_nothing_else(world: Path) -> None:
    (note,) = preflight(recipe(world))
    assert note.level == "note"
    for word in ("tokens", "GiB to write", "GiB of memory", "on this processor"):
        assert word in note.message


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
    assert levels == sorted(levels, key=("error", "warning", "note").index)
    assert levels[0] == "error"
    assert str(Finding("warning", "x")) == "warning: x"


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
