"""Places without rights, files and disks that are full: said in few lines, nothing half-written.

Rights are taken away for real: as root the command runs as a user who owns nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from surgekit.cli import run as command

from .processes import files_at_most, open_to_all, shut, without_rights
from .runs import leftovers, make_world, sound
from .wrong import TEST, drift, expect_short, fit, linear_of, math_with, seen, write_recipe


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """The small world where any user can reach it, which pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="surgekit-test-"))
    make_world(folder)
    write_recipe(folder, "recipe.yaml", seeds=[0], surgery=[{"module": "mean-shift"}])
    (folder / "merge.yml").write_text(linear_of("./math", "./code"))
    shutil.copytree(folder / "math", folder / "closed")
    (folder / "frozen").mkdir()
    (folder / "hidden").mkdir()
    shutil.copy(folder / "recipe.yaml", folder / "hidden" / "recipe.yaml")
    shutil.copy(folder / TEST, folder / "hidden" / "p.jsonl")
    call = fit().replace("--out new", f"--out {folder}/frozen/adapter").replace("data/", "X/")
    call = call.replace("X/", f"{folder}/data/").replace("merged math", f"merged {folder}/math")
    call = call.replace("math=code", f"math={folder}/code")
    assert command([*call.split(), "-q"]) == 0
    write_recipe(folder, "closed.yaml", **math_with(expert="./closed"))
    write_recipe(folder, "hidden.yaml", **math_with(test="hidden/p.jsonl"))
    assert command(["check", str(folder / "recipe.yaml")]) == 0  # imports what will be needed
    open_to_all(folder)
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    back = [
        shut(folder / "closed" / "model.safetensors", 0o000),
        shut(folder / "frozen", 0o555),
        shut(folder / "hidden", 0o000),
    ]
    yield folder
    for give in back:
        give()
    shutil.rmtree(folder)


FROZEN = fit().replace("--out new", "--out frozen/new")

RIGHTS: dict[str, tuple[str, ...]] = {
    # may not be read
    "run hidden/recipe.yaml --out new": ("hidden/recipe.yaml: Permission denied",),
    "check hidden/recipe.yaml": ("hidden/recipe.yaml: Permission denied",),
    "run hidden.yaml --out open/new": ("hidden/p.jsonl", "Permission denied"),
    "run closed.yaml --out open/new": ("closed", "Permission denied"),
    "init hidden/merge.yml": ("hidden/merge.yml", "Permission denied"),
    "merge hidden/merge.yml open/new": ("hidden/merge.yml", "Permission denied"),
    "inspect hidden/adapter": ("hidden/adapter", "Permission denied"),
    "inspect hidden": ("hidden",),
    drift(merged="closed"): ("closed", "Permission denied"),
    drift(expert="closed"): ("closed", "Permission denied"),
    fit(expert="closed").replace("--out new", "--out open/new"): ("closed", "Permission denied"),
    drift(prompts="hidden/p.jsonl"): ("hidden/p.jsonl: Permission denied",),
    drift(merged="hidden/m"): ("hidden/m",),
    # may not be written
    "run recipe.yaml --out frozen/new": ("cannot write frozen/new", "Permission denied"),
    "run recipe.yaml --out hidden": ("hidden",),
    "run recipe.yaml --out hidden/new": ("hidden/new", "Permission denied"),
    "merge merge.yml frozen/new": ("cannot write", "frozen/new: Permission denied", "another"),
    "merge merge.yml frozen/a/b/c": ("cannot write", "Permission denied in", "frozen"),
    "merge merge.yml hidden/new": ("hidden/new", "Permission denied"),
    "init merge.yml --out frozen/r.yaml": ("cannot write frozen/r.yaml: Permission denied",),
    "init merge.yml --out hidden/r.yaml": ("hidden/r.yaml", "Permission denied"),
    FROZEN: ("cannot write frozen/new: Permission denied", "name another place"),
    FROZEN.replace("frozen/new", "frozen/adapter"): ("frozen/adapter", "Permission denied"),
    FROZEN.replace("frozen/new", "hidden/new"): ("hidden/new", "Permission denied"),
    drift(more="--plot frozen/p.html"): ("cannot write frozen/p.html: Permission denied",),
    drift(more="--plot hidden/p.html"): ("hidden/p.html", "Permission denied"),
}


@pytest.mark.parametrize("call", RIGHTS)
def test_without_the_rights(root: Path, tmp_path: Path, call: str) -> None:
    verb, *rest = call.split()
    quiet = ["-q"] if verb in ("run", "bias", "calibrate", "merge") else []
    before = seen(root)
    ended = without_rights([verb, *quiet, *rest], root, tmp_path)
    assert ended.status == 2, ended
    assert ended.out == ""
    expect_short(ended.err)
    for word in RIGHTS[call]:
        assert word in ended.err, ended.err
    assert seen(root) == before


# --- files and disks that are full --------------------------------------------------------------

WRITES: dict[str, tuple[str, tuple[int, ...]]] = {
    "init": ("init merge.yml --out OUT/new", (1, 100, 400)),
    "merge": ("merge merge.yml OUT/new", (1, 500, 3000, 40_000, 100_000)),
    "calibrate": (fit(more="--module linear").replace("new", "OUT/new"), (1, 300, 2000)),
    "bias": (drift(more="--plot OUT/new.html"), (1, 10_000, 4_000_000)),
    "run": ("run recipe.yaml --out OUT/new", (1, 300, 2000, 9000, 40_000, 100_000)),
}


@pytest.mark.parametrize(("verb", "size"), [(v, s) for v, (_, ss) in WRITES.items() for s in ss])
def test_a_file_that_cannot_grow(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    verb: str,
    size: int,
) -> None:
    """The kernel refuses the write, as on a full disk; this needs no rights, so it always runs."""
    monkeypatch.chdir(root)
    call = WRITES[verb][0].replace("OUT", str(tmp_path)).split()
    with files_at_most(size):
        status = command([*call, *(["-q"] if verb != "init" else [])])
    said = capsys.readouterr()
    assert status == 2, said
    assert said.out == ""
    expect_short(said.err)
    assert len(said.err.splitlines()) == 1
    assert "cannot write" in said.err
    assert "File too large" in said.err
    assert str(tmp_path) in said.err
    assert leftovers(tmp_path) == []
    if verb == "run":
        sound(tmp_path / "new")
    else:
        assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays_when_its_successor_does_not_fit(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(root)
    plot = drift(more=f"--plot {tmp_path / 'new.html'} -q").split()
    adapter = [*fit().replace("--out new", f"--out {tmp_path / 'new'}").split(), "-q"]
    assert command(plot) == command(adapter) == 0
    before = seen(tmp_path)
    with files_at_most(1000):
        assert command(plot) == command(adapter) == 2
    assert seen(tmp_path) == before
    assert capsys.readouterr().err.count("File too large") == 2


def test_the_folder_one_stands_in_is_not_replaced(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = fit().replace("--out new", "--out .").replace("data/", f"{root}/data/")
    call = call.replace("merged math", f"merged {root}/math").replace("=code", f"={root}/code")
    monkeypatch.chdir(tmp_path)
    assert command([*call.split(), "-q"]) == 2
    assert "from inside it; name another folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_link_as_a_place_is_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(root)
    for name in ("merged", "adapter"):
        (tmp_path / "far" / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(f"far/{name}")
    (tmp_path / "p.html").symlink_to("far/p.html")
    assert command(["merge", "merge.yml", str(tmp_path / "merged"), "-q"]) == 0
    call = fit().replace("--out new", f"--out {tmp_path / 'adapter'}")
    assert command([*call.split(), "-q"]) == 0
    assert command([*drift(more=f"--plot {tmp_path / 'p.html'}").split(), "-q"]) == 0
    for name in ("merged", "adapter", "p.html"):
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "far" / name).exists()
    assert os.listdir(tmp_path / "far" / "adapter")
