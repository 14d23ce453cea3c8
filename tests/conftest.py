"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

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
