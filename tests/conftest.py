"""What all tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .examples import register

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach a hub
register()


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """A torch.compile that has seen no model yet, and keeps none."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world to spoil, and the working directory."""
    shutil.copytree(world, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    return tmp_path / "world"
