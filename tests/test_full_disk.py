"""Places that cannot be written: said in one line, and nothing half-written stays."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from surgekit.cli import run as command

from .runs import document, leftovers, make_world, recipe, sound
from .sources import lora
from .tiny import llama


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_world(tmp_path_factory.mktemp("world"))
    lora(root / "lora", llama(0))
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
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


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
    file = tmp_path / "recipe.yaml"
    domains = document()["domains"]
    domains["code"]["expert"] = {"lora": "./lora"}
    changes = recipe(world, domains=domains).model_dump(mode="json")
    file.write_text(yaml.safe_dump(changes, sort_keys=False))
    disk = mounted(f"size={size}")
    line = refused(disk / "run", file, capsys)
    assert "No space left on device" in line
    assert str(disk) in line
    sound(disk / "run")


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
