"""Places that cannot be written: said in one line, and nothing half-written stays."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.pipeline.run import run_recipe

from .runs import document, leftovers, make_world, recipe, sound
from .sources import lora
from .tiny import llama
from .wrong import drift, fit, linear_of


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_world(tmp_path_factory.mktemp("world"))
    lora(root / "lora", llama(0))
    (root / "merge.yml").write_text(linear_of("./math", "./code"))
    return root


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system of its own in a folder; needs to be root."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> Path:
        call = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            subprocess.run(call, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a tmpfs cannot be mounted here: {error}")
        return folder

    yield mount
    # Lazily: a file that a kept traceback still maps would hold it.
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def refused(out: Path, recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command says when it cannot write."""
    assert command(["run", str(recipe_file), "--out", str(out), "--quiet"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert leftovers(out) == []
    return line


@pytest.mark.parametrize("size", ["8k", "64k", "200k", "320k", "420k", "520k", "640k"])
def test_a_full_disk_ends_the_run_in_one_line(
    world: Path,
    mounted: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    size: str,
) -> None:
    domains = document()["domains"]
    domains["code"]["expert"] = {"lora": "./lora"}
    made = recipe(world, domains=domains)
    disk = mounted(f"size={size}")
    # The check before a run sees that the disk is too small; another may fill it later.
    with pytest.raises(InputError, match="No space left on device") as caught:
        run_recipe(made, disk / "run")
    assert str(disk) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert leftovers(disk) == []
    sound(disk / "run")
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(made.model_dump(mode="json"), sort_keys=False))
    assert str(disk) in refused(disk / "run", file, capsys)


VERBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "init": ("init merge.yml --out DISK/new", ("4k",)),
    "merge": ("merge merge.yml DISK/new -q", ("8k", "64k", "100k")),
    "calibrate": (fit(more="-q").replace("--out new", "--out DISK/new"), ("8k", "32k")),
    "bias": (drift(more="--plot DISK/new.html -q"), ("8k", "1m")),
}


@pytest.mark.parametrize(("verb", "size"), [(v, s) for v, (_, ss) in VERBS.items() for s in ss])
def test_a_full_disk_ends_every_verb_in_one_line(
    world: Path,
    mounted: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    size: str,
) -> None:
    monkeypatch.chdir(world)
    disk = mounted(f"size={size}")
    if verb == "init":
        (disk / "full").write_bytes(b"x" * 4096)
    before = sorted(disk.iterdir())
    assert command(VERBS[verb][0].replace("DISK", str(disk)).split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("surgekit: cannot write ")
    assert "No space left on device" in line
    assert str(disk) in line
    assert sorted(disk.iterdir()) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_is_read_only_is_found_before_any_work(
    world: Path,
    mounted: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
) -> None:
    monkeypatch.chdir(world)
    disk = mounted("ro")
    call = [a for a in VERBS[verb][0].replace("DISK", str(disk)).split() if a != "-q"]
    assert command(call) == 2
    (line,) = capsys.readouterr().err.splitlines()  # not one note of any work
    assert "Read-only file system" in line


def test_a_place_that_is_read_only(
    world: Path,
    mounted: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe(world).model_dump(mode="json"), sort_keys=False))
    line = refused(mounted("ro") / "run", file, capsys)
    assert "Read-only file system" in line
