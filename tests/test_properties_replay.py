"""The fuzzers' inputs: sound seeds are read, and what once failed does not fail again."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from .invariants import CHECKS, SEPARATOR, adapter_of, merge_config_of, recipe_of, states_of

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("folder", ["corpus", "regressions"])
def test_inputs_kept_for_the_fuzzers_pass(name: str, folder: str) -> None:
    files = sorted((FUZZ / folder / name).glob("*"))
    assert files or folder == "regressions"
    for file in files:
        try:
            CHECKS[name](file.read_bytes())
        except BaseException as error:
            error.add_note(f"input: {file}")
            raise


def test_the_seeds_are_accepted_and_nothing_but_what_the_script_makes() -> None:
    made: dict[str, Any] = runpy.run_path(str(FUZZ / "seeds.py"))
    kinds = {"adapter": "adapters", "states": "states", "recipe": "recipes"}
    kinds |= {"prompts": "prompts", "merge": "merges", "gguf": "ggufs", "lora": "loras"}
    for name, maker in (kinds | {"checkpoint": "checkpoints"}).items():
        seeds: dict[str, bytes] = made[maker]()
        kept = {p.name: p.read_bytes() for p in (FUZZ / "corpus" / name).iterdir()}
        assert kept.keys() == seeds.keys()
        # safetensors writes metadata in an order that is drawn anew each time.
        assert name == "states" or kept == seeds, f"run fuzz/seeds.py: {name}"
        for label, content in seeds.items():
            if name == "adapter":
                settings, _, tensors = content.partition(SEPARATOR)
                assert adapter_of(settings, tensors) is not None, label
            elif name == "states" and label.startswith("states"):
                assert states_of(content) is not None, label
            elif name == "recipe":
                assert recipe_of(content.decode()) is not None, label
            elif name == "merge":
                assert merge_config_of(content.decode()) is not None, label
