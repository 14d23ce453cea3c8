"""What all tests share."""

from __future__ import annotations

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach a hub


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)
