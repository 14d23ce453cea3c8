"""SIGKILL in the middle of a single verb, and several at once on one place: whole or not at all."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from surgekit.adapters.files import load_adapter
from surgekit.files import clear_leftovers, writer_at_work

from .killed_world import World, killable_world
from .killing import Outcome

SEED = 20261201


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with killable_world(tmp_path_factory.mktemp("world"), "first") as made:
        yield made


def content(folder: Path) -> dict[str, str]:
    """Digest of every file in a folder, by name."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def merge_file(world: World, folder: Path) -> Path:
    half = {"parameters": {"weight": 0.5}}
    models = [{"model": str(world.root / name)} | half for name in ("base", "math")]
    made = {"merge_method": "linear", "models": models, "dtype": "float32"}
    (folder / "merge.yml").write_text(yaml.safe_dump(made))
    return folder / "merge.yml"


@pytest.fixture
def merging(world: World, tmp_path: Path) -> tuple[Path, Outcome, dict[str, str]]:
    """(configuration, how an undisturbed merge went, what it wrote)."""
    file = merge_file(world, tmp_path)
    (ended,) = world.server.run(world.server.command("merge", file, tmp_path / "whole"))
    assert ended.status == 0, ended.said
    return file, ended, content(tmp_path / "whole")


def test_a_killed_merge_leaves_no_folder(
    world: World, merging: tuple[Path, Outcome, dict[str, str]], tmp_path: Path
) -> None:
    file, undisturbed, wanted = merging
    out = tmp_path / "places" / "out"
    job = world.server.command("merge", file, out)
    last = max(i for i, e in enumerate(undisturbed.events) if e.startswith("rename .whole.part"))
    draw = random.Random(SEED)
    steps = [last + 1, *(draw.randint(1, last + 1) for _ in range(4))]  # the last: just before
    for step in steps:
        assert world.server.run(job | {"at": "", "nth": step})[0].killed
        assert not out.exists()
        (again,) = world.server.run(dict(job))
        assert again.status == 0, again.said
        assert content(out) == wanted
        assert [p.name for p in out.parent.iterdir()] == ["out"]
        shutil.rmtree(out)
    seconds = undisturbed.seconds
    for _ in range(3):
        world.server.run(job | {"after": draw.uniform(0.2, 1) * seconds})
        assert not out.exists() or content(out) == wanted


def test_what_a_living_process_writes_is_left_alone(
    world: World, merging: tuple[Path, Outcome, dict[str, str]], tmp_path: Path
) -> None:
    file, _, wanted = merging
    job = world.server.command("merge", file, tmp_path / "out", "--quiet")
    assert world.server.run(job | {"at": "rename .out.part"})[0].killed
    (left,) = tmp_path.glob(".out.part-*")
    _, pid, machine = left.name.rsplit("-", 2)
    with subprocess.Popen(["sleep", "60"]) as living:
        mine = left.with_name(f".out.part-{living.pid}-{machine}")
        left.rename(mine)
        (refused,) = world.server.run(dict(job))
        assert (refused.status, len(refused.said.splitlines())) == (2, 1)
        assert f"process {living.pid} is writing it" in refused.said
        assert mine.is_dir()
        assert not (tmp_path / "out").exists()
        elsewhere = left.with_name(f".out.part-{pid}-00000000")  # another machine's: who knows
        shutil.copytree(mine, elsewhere)
        living.kill()
        os.waitid(os.P_PID, living.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked
        (again,) = world.server.run(dict(job))
    assert again.status == 0, again.said
    assert content(tmp_path / "out") == wanted
    assert not mine.exists()
    assert elsewhere.is_dir()


def test_whose_leftovers_are_whose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process, by when it began, and by the whole name."""
    parent = os.getppid()
    names = [f".a.part-{parent}", ".a.part-7777777", ".a.b.part-7777777", ".aa.old-7777777"]
    for name in names:
        (tmp_path / name).mkdir()
    assert writer_at_work(tmp_path / "a") == parent
    clear_leftovers(tmp_path / "a")
    assert {p.name for p in tmp_path.iterdir()} == set(names) - {names[1]}
    born = (tmp_path / names[0]).lstat().st_ctime
    for late, alive in ((59, True), (61, False)):  # a later process of the same number
        monkeypatch.setattr(psutil.Process, "create_time", lambda self, at=born + late: at)
        assert (writer_at_work(tmp_path / "a") == parent) == alive
    clear_leftovers(tmp_path / "a")
    assert not (tmp_path / names[0]).exists()
    clear_leftovers(tmp_path / "aa")  # moved aside, and nothing came in its place
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.b.part-7777777", "aa"]
    clear_leftovers(tmp_path / "nowhere" / "x")


def test_of_merges_into_one_folder_one_wins_whole(
    world: World, merging: tuple[Path, Outcome, dict[str, str]], tmp_path: Path
) -> None:
    file, _, wanted = merging
    out = tmp_path / "places" / "out"
    for _ in range(2):
        start = {"start_at": time.time() + 0.2}
        ended = world.server.run(
            *(world.server.command("merge", file, out, "--quiet") | start for _ in range(4))
        )
        assert [e.status for e in ended].count(0) == 1, [e.said for e in ended]
        for refused in (e for e in ended if e.status):
            assert (refused.status, len(refused.said.splitlines())) == (2, 1), refused.said
        assert content(out) == wanted
        assert [p.name for p in out.parent.iterdir()] == ["out"]
        shutil.rmtree(out)


def calibrating(world: World, out: Path, seed: int) -> dict[str, Any]:
    return world.server.command(
        *("calibrate", "--merged", world.whole["first"] / "merged"),
        *("--expert", f"math={world.root / 'math'}"),
        *("--prompts", f"math={world.root / 'data/math/calibration.jsonl'}"),
        *("--out", out, "--dtype", "float32", "--rank", "4", "--iterations", "3"),
        *("--seed", str(seed), "--quiet"),
    )


def test_a_killed_calibration_leaves_the_old_adapter_or_the_new(
    world: World, tmp_path: Path
) -> None:
    wanted: dict[int, dict[str, str]] = {}
    for seed in (0, 1):
        (ended,) = world.server.run(calibrating(world, tmp_path / str(seed), seed))
        assert ended.status == 0, ended.said
        wanted[seed] = content(tmp_path / str(seed))
    assert wanted[0] != wanted[1]
    out = tmp_path / "adapters" / "it"
    gone = 0
    for at, nth in [
        ("write .surgery.safetensors.part", 1),
        ("rename .it.part it", 1),
        ("rename it .it.old", 1),
        ("rename .it.part it", 2),  # the one moment at which there is none
        ("remove", 4),
    ]:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(tmp_path / "0", out)
        (killed,) = world.server.run(calibrating(world, out, 1) | {"at": at, "nth": nth})
        assert killed.killed, killed.events
        if out.exists():
            assert content(out) in (wanted[0], wanted[1])
            load_adapter(out)
        else:
            gone += 1
        assert world.server.run(calibrating(world, out, 1))[0].status == 0
        assert content(out) == wanted[1]
        assert [p.name for p in out.parent.iterdir()] == ["it"]
    assert gone == 1


def test_of_calibrations_into_one_folder_one_wins_whole(world: World, tmp_path: Path) -> None:
    out = tmp_path / "adapters" / "it"
    wanted = []
    for seed in range(4):
        assert world.server.run(calibrating(world, tmp_path / str(seed), seed))[0].status == 0
        wanted.append(content(tmp_path / str(seed)))
    for _ in range(2):
        start = {"start_at": time.time() + 0.2}
        ended = world.server.run(*(calibrating(world, out, s) | start for s in range(4)))
        assert [e.status for e in ended] == [0] * 4, [e.said for e in ended]
        assert content(out) in wanted
        assert [p.name for p in out.parent.iterdir()] == ["it"]


def test_a_killed_plot_leaves_the_old_one_or_the_new(world: World, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    plot = tmp_path / "plots" / "drift.html"
    job = world.server.command(
        *("bias", "--merged", world.whole["first"] / "merged"),
        *("--expert", f"math={world.root / 'math'}"),
        *("--prompts", f"math={world.root / 'data/math/test.jsonl'}"),
        *("--plot", plot, "--dtype", "float32", "--quiet"),
    )
    for at in ("write .drift.html", "^sync$", "rename .drift.html"):
        assert world.server.run(job | {"at": at})[0].killed
        assert not plot.exists()
    assert world.server.run(dict(job))[0].status == 0
    assert [p.name for p in plot.parent.iterdir()] == ["drift.html"]
    assert plot.read_text(encoding="utf-8").rstrip().endswith("</html>")
    before = plot.read_bytes()
    assert world.server.run(job | {"at": "rename .drift.html"})[0].killed
    assert plot.read_bytes() == before
