"""What all tests share."""

from __future__ import annotations

import os

import pytest
import torch

from .examples import register

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach a hub
register()


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)
