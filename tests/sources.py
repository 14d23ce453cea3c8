"""Checkpoints, LoRAs and damage, for the tests that load models."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from surgekit.errors import InputError
from surgekit.models.loading import load_model


def lora(folder: Path, model: nn.Module, base: Path | None = None, **changed: Any) -> Path:
    """A random LoRA of rank 4 and scale 2, as PEFT saves it."""
    from peft import LoraConfig, get_peft_model

    settings: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "down_proj"],
        "init_lora_weights": False,
    }
    torch.manual_seed(9)
    with warnings.catch_warnings():  # PEFT's own; the package must do without this
        warnings.simplefilter("ignore", FutureWarning)
        made: Any = get_peft_model(model, LoraConfig(**(settings | changed)))
    made.save_pretrained(str(folder))
    if base is not None:
        edit(folder / "adapter_config.json", base_model_name_or_path=str(base))
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def same(found: nn.Module, expected: dict[str, Tensor]) -> None:
    state = found.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype, name
        assert torch.equal(state[name], tensor), name


def refuse(source: Any, *words: str, **options: Any) -> None:
    """Loading fails with a short message that holds all ``words``."""
    with pytest.raises(InputError) as caught:
        load_model(source, **options)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert len(message.replace(str(source), "")) < 700
