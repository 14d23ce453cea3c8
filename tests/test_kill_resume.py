"""SIGKILL at any moment, then on: the same bits in the end, nothing twice, nothing left about."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.pipeline.results import read_results
from surgekit.pipeline.run_directory import finished_stages

from .killed_world import World, killable_world, recipe_file
from .killing import SOURCE, Outcome
from .runs import adapters, figures, leftovers, sound

SEED = 20261201


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with killable_world(tmp_path_factory.mktemp("world"), "first", "second") as made:
        yield made


def states(out: Path) -> dict[str, str]:
    """Checksum of each file of states and heads, by path."""
    found: dict[str, str] = {}
    for path in sorted((out / "states").rglob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            found[str(path.relative_to(out))] = file.metadata()["sha256"]
    return found


def looked_at(out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The finished stages, as ``inspect`` finds them in an interrupted run."""
    capsys.readouterr()
    if not (out / "stages").is_dir():
        return []
    assert command(["inspect", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["results"] is not None) == (out / "results.json").exists()
    assert found["results"] is None or set(found["results"]["domains"]) == {"math", "code"}
    return found["finished stages"]


def agrees(world: World, out: Path, name: str, ended: Outcome) -> None:
    """A run that was killed and resumed has come to what the undisturbed one came to."""
    assert ended.status == 0, ended.said
    wanted = world.whole[name]
    results, other = (json.loads((d / "results.json").read_text()) for d in (out, wanted))
    found = figures(results, world.whole["first"])  # a copy of it may be what went on
    assert figures(found, out) == figures(other, wanted)
    assert adapters(out) == adapters(wanted)
    assert states(out) == states(wanted)
    sound(out)
    notes = [n for n in ended.notes if "was made by another recipe" not in n]
    assert notes == world.outcome[name].notes


def killed_and_resumed(
    world: World, out: Path, capsys: pytest.CaptureFixture[str], **how: Any
) -> Outcome:
    """One kill, one resumed run, and all that must hold; the killed run's outcome."""
    first = world.run(out, **how)
    before = looked_at(out, capsys)
    ended = world.run(out)
    assert not set(before) & set(ended.done), (how, before, ended.done)
    assert set(before) <= set(ended.reused)
    agrees(world, out, "first", ended)
    shutil.rmtree(out)
    return first


# --- runs -----------------------------------------------------------------------------------------

MOMENTS = {
    "while it makes the directory": {"at": "rename .run.json"},
    "while it writes a LoRA out": {"at": "write .*tokenizer.json"},
    "before a model's folder gets its name": {"at": "rename .code.part code"},
    "in the middle of the merge": {"at": "rename model-1.safetensors"},
    "before the merge gets its name": {"at": "rename .merged.part merged$"},
    "between the merge and its marker": {"at": "write .merge.json.part"},
    "while it writes a head": {"at": "write .merged.safetensors.part"},
    "between two states": {"at": "start states of math/test/merged"},
    "between write and sync": {"at": "^sync$", "nth": 30},
    "between sync and rename": {"at": r"rename \.math.safetensors.part", "nth": 2},
    "while it measures drift": {"at": "stage bias/code"},
    "while it writes an adapter": {"at": "rename .surgery.safetensors.part", "nth": 3},
    "between an adapter and its marker": {"at": r"write \.linear@both.json.part", "nth": 2},
    "while it chooses": {"at": "start fidelity on code, validation"},
    "while it tests": {"at": "start fidelity on math, test"},
    "in cross effects": {"at": "start fidelity on merged, cross plain"},
    "while it writes the results": {"at": r"write \.results.json"},
    "before the results get their name": {"at": r"rename \.results.json"},
}


RARE = ("directory", "name", "while it writes a head", "two states", "drift", "chooses", "cross")
"""Moments that are left to the slow run: others in the same stage, or by the same helper, stay."""


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(m, marks=pytest.mark.slow if any(word in m for word in RARE) else ())
        for m in MOMENTS
    ],
)
def test_killed_at_a_given_moment(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    first = killed_and_resumed(world, tmp_path / "run", capsys, **MOMENTS[moment])
    assert first.killed


def test_killed_at_random_moments(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_kills(world, tmp_path / "run", capsys, steps=2, times=1, seed=SEED)


def random_kills(
    world: World,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    steps: int,
    times: int,
    seed: int,
) -> Counter[str]:
    """Kills at random steps, and after random times; how many hit which stage."""
    draw = random.Random(seed)
    total = len(world.outcome["first"].events)
    ways: list[dict[str, Any]] = [{"at": "", "nth": draw.randint(1, total)} for _ in range(steps)]
    seconds = world.outcome["first"].seconds
    ways += [{"after": round(draw.uniform(0.02, seconds), 4)} for _ in range(times)]
    hit: Counter[str] = Counter()
    for way in ways:
        try:
            first = killed_and_resumed(world, out, capsys, **way)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, kill {way}") from error
        assert first.killed or "after" in way
        if first.killed:  # after a time, the run may have been over
            hit[first.stage] += 1
    return hit


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED + 1, SEED + 6))
def test_killed_at_many_random_moments(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    started = time.monotonic()
    hit = random_kills(world, tmp_path / "run", capsys, steps=14, times=6, seed=seed)
    with capsys.disabled():
        spent = time.monotonic() - started
        print(f"\n{sum(hit.values())} kills in {spent:.0f} s: {dict(hit.most_common())}")
    assert sum(hit.values()) >= 14
    assert len(hit) >= 3


def chain(
    world: World, out: Path, capsys: pytest.CaptureFixture[str], longest: int, seed: int
) -> int:
    """Kill, resume, kill, resume … to the end; how many kills it took."""
    draw = random.Random(seed)
    done: list[str] = []
    for kills in range(200):
        ended = world.run(out, at="", nth=draw.randint(longest // 2, longest))
        before = set(done)
        done = looked_at(out, capsys)
        assert before <= set(done), seed
        assert not before & set(ended.done), seed
        if not ended.killed:
            agrees(world, out, "first", ended)
            return kills
    raise AssertionError(f"seed {seed}: 200 kills and no end")


def test_killed_again_and_again(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chain(world, tmp_path / "run", capsys, 350, SEED) >= 3


@pytest.mark.slow
def test_killed_again_and_again_at_short_intervals(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        assert chain(world, tmp_path / str(seed), capsys, 150, seed) >= 8


@pytest.mark.parametrize(
    ("at", "nth"),
    [
        (r"remove darts-ewl1@both\.json", 1),  # the marker is there, its stage is outdated
        (r"rename \.darts-ewl1@both\.part darts-ewl1@both$", 1),
        (r"rename darts-ewl1@both \.darts-ewl1@both\.old", 1),
        (r"rename \.darts-ewl1@both\.part darts-ewl1@both$", 2),  # between the two renames
        (r"write \.darts-ewl1@both\.json\.part", 1),
    ],
)
def test_killed_while_an_adapter_is_replaced(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str, nth: int
) -> None:
    """A second recipe on the same directory: never the first one's adapter for the second's."""
    out = tmp_path / "run"
    shutil.copytree(world.whole["first"], out)
    assert world.run(out, "second", at=at, nth=nth).killed
    looked_at(out, capsys)
    ended = world.run(out, "second")
    agrees(world, out, "second", ended)
    again = {n for n in ended.done if n.startswith("surgery/")}
    assert again <= {n for n in world.outcome["second"].done if "darts" in n}
    assert world.run(out, "first").status == 0
    assert adapters(out) == adapters(world.whole["first"])


def test_another_run_than_the_killed_one_goes_on_in_its_place(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompt files, the settings: what the killed run has made is used only where it fits."""
    out = tmp_path / "run"
    assert world.run(out, "first", at="start fidelity on math, validation").killed
    agrees(world, out, "second", world.run(out, "second"))


# --- two at once ----------------------------------------------------------------------------------


def test_of_four_runs_on_one_directory_one_works(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe_file(world, tmp_path / "recipe.yaml", "long")
    out, link = tmp_path / "runs" / "it", tmp_path / "link"
    out.parent.mkdir()
    link.symlink_to(out.parent)
    places = [out, link / "it", out, link / "it"]  # also by another name
    start = {"start_at": time.time() + 0.3}
    ended = world.server.run(
        *(world.server.command("run", file, "--out", p, "--quiet") | start for p in places)
    )
    assert sorted(e.status for e in ended) == [0, 2, 2, 2], [e.said for e in ended]
    for refused in ended:
        if refused.status:
            (line,) = refused.said.splitlines()
            assert "another run is at work in" in line
    assert leftovers(out) == []
    assert "surgery/math/linear@both" in looked_at(out, capsys)


_HOLD = """
import sys, time
from pathlib import Path
from surgekit.pipeline.progress import Reporter
from surgekit.pipeline.run_directory import RunDirectory
with RunDirectory.open(Path(sys.argv[1]), Reporter()):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_run_holds_nothing(world: World, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert world.run(out, at="stage capture/heads/base").killed
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        refused = world.run(out)
        assert (refused.status, "another run is at work" in refused.said) == (99, True)
    finally:
        holder.kill()
        holder.communicate()
    agrees(world, out, "first", world.run(out))


@pytest.mark.slow
def test_of_four_real_commands_one_works(world: World, tmp_path: Path) -> None:
    file = recipe_file(world, tmp_path / "recipe.yaml", "long")
    arguments = [sys.executable, "-m", "surgekit", "run", str(file), "--out", str(tmp_path / "run")]
    ran = [
        subprocess.Popen(
            [*arguments, "--quiet"],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [p.communicate(timeout=300)[1] for p in ran]
    assert sorted(p.returncode for p in ran) == [0, 2, 2, 2], said
    assert sum("another run is at work" in s for s in said) == 3


def test_inspect_says_what_is_wrong_with_half_a_file(tmp_path: Path, world: World) -> None:
    """A directory whose results were cut short by a disk, not by surgekit."""
    out = tmp_path / "run"
    shutil.copytree(world.whole["first"], out)
    path = out / "results.json"
    path.write_bytes(path.read_bytes()[:1000])
    assert command(["inspect", str(out)]) == 2
    assert len(finished_stages(out)) > 30
    with pytest.raises(InputError, match="expected a run's results as JSON"):
        read_results(out)
