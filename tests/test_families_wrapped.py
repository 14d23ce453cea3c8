"""Every family copied, pickled, offloaded, under a LoRA, compiled: corrected by the formula."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from surgekit.adapters.attach import SurgeryHandle, attach
from surgekit.models.anatomy import find_anatomy
from surgekit.models.fingerprint import fingerprint

from .families import FAMILIES, family
from .surgeries import close, surgery, tokens
from .test_families import LENGTH, by_hand, every, surgery_for, worst
from .test_wrapped import peft_warns, through_pickle, to_disk, to_memory

# What a family, accelerate 1.15 or PEFT 0.21 cannot do by itself, with or without a correction, and
# the way out, by which it is tested. Each entry is held against the bare model: a table that no
# longer tells the truth fails.
WITHOUT_OFFLOADED_LAYERS = {
    "dbrx": ("hands its experts' weights on as arguments", ["DbrxExperts"]),
    "jetmoe": ("adds a bias beside the layers", ["JetMoeAttention", "JetMoeMoE"]),
    "llama4": ("sends the ids where its embedding's empty shell lies", ["Llama4TextModel"]),
}
"""Cannot run with each layer offloaded: why, and the classes to load as one."""
WITHOUT_LORA_ON_ALL = {
    "phimoe": ("its router is a linear layer that returns a tuple", ["router"]),
    "llama4": ("its router is a linear layer that returns a tuple", ["router"]),
} | dict.fromkeys(
    ("mamba", "falcon_mamba", "mamba2", "falcon_h1", "nemotron_h"),
    ("PEFT refuses a layer whose weight mamba's kernels read themselves", ["out_proj"]),
)
"""Cannot have a LoRA on all linear layers: why, and the layers to leave out."""

COMPILED_FAST = ("llama", "gemma2", "gpt2", "bloom", "mamba", "mixtral", "falcon", "opt")
"""Tracing takes seconds a family: these are compiled in every run of the tests."""
IDS = tokens(2, LENGTH)


def logits(model: Any) -> Tensor:
    """(2, T, V) of the same tokens always."""
    with torch.no_grad():
        return model(input_ids=IDS).logits


@cache
def formula(name: str) -> Tensor:
    """(2, T, V) float64: what the whole, bare model gives after correction by hand."""
    return by_hand(name, family(name), range(LENGTH), input_ids=IDS)


# -- copied, pickled -------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("again", [copy.deepcopy, through_pickle])
def test_a_copy_is_corrected_and_freed_by_itself(again: Any, name: str) -> None:
    model = family(name)
    plain = logits(model)
    with attach(model, surgery_for(name)) as handle:
        twin = again(model)
        own = SurgeryHandle.of(twin)
        assert own is not None
        assert own is not handle
        close(logits(twin), formula(name))
        own.detach()
        assert torch.equal(logits(twin), plain)
        close(logits(model), formula(name))
    own.attach()
    close(logits(twin), formula(name))
    assert torch.equal(logits(model), plain)


# -- offloaded -------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("offload", [to_memory, to_disk])
def test_an_offloaded_model_is_corrected(offload: Any, name: str, tmp_path: Path) -> None:
    whole, as_one = family(name), list[str]()
    plain, (anatomy, head) = logits(whole), find_anatomy(whole)
    if name in WITHOUT_OFFLOADED_LAYERS:
        with pytest.raises(RuntimeError, match="meta"):
            logits(offload(family(name), tmp_path / "layers"))
        as_one = WITHOUT_OFFLOADED_LAYERS[name][1]
    away = offload(family(name), tmp_path, as_one)
    assert any(p.is_meta for p in away.parameters())
    assert fingerprint(away) == fingerprint(whole)
    found, own_head = find_anatomy(away)
    assert found == anatomy
    assert torch.equal(own_head.weight, head.weight)
    with attach(away, surgery_for(name)):
        close(logits(away), formula(name))
    close(logits(away), plain, 1e-6)


def test_a_model_that_is_loaded_as_one_has_its_fingerprint(tmp_path: Path) -> None:
    whole = family("llama")
    for k, kind in enumerate(["LlamaDecoderLayer", "LlamaModel", "LlamaForCausalLM"]):
        for offload in (to_memory, to_disk):
            away = offload(family("llama"), tmp_path / str(k), [kind])
            assert fingerprint(away) == fingerprint(whole)
            assert find_anatomy(away)[0] == find_anatomy(whole)[0]


# -- under a LoRA ----------------------------------------------------------------------------------


def lora(model: Any, without: Sequence[str] = ()) -> Any:
    """A random LoRA on all linear layers, the same at each call."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(5)
    how = {"target_modules": "all-linear", "exclude_modules": list(without) or None}
    config = LoraConfig(r=4, init_lora_weights=False, **how)
    return get_peft_model(model, config).eval().requires_grad_(False)


@dataclass(frozen=True)
class UnderLora:
    """What is known of a family before anything is attached.

    Attributes:
        mark: fingerprint of the bare model.
        without: layers to leave out.
        plain: logits of the bare model.
        lora: logits under the LoRA.
        expected: of the corrected model under the LoRA, by hand.
    """

    mark: str
    without: list[str]
    plain: Tensor
    lora: Tensor
    expected: Tensor


@cache
def under_lora(name: str) -> UnderLora:
    bare, without = family(name), list[str]()
    plain, mark = logits(bare), fingerprint(bare)
    if name in WITHOUT_LORA_ON_ALL:
        with pytest.raises((ValueError, AttributeError), match=r"out_proj|'tuple' object"):
            logits(lora(bare))
        bare, without = family(name), WITHOUT_LORA_ON_ALL[name][1]
    wrapped = lora(bare, without)
    expected = by_hand(name, wrapped.get_base_model(), range(LENGTH), input_ids=IDS)
    found = UnderLora(mark, without, plain, logits(wrapped), expected)
    assert worst(found.lora, plain) > 0.5  # else the LoRA could as well be missing
    assert fingerprint(wrapped.merge_and_unload()) != mark
    return found


@every
@peft_warns
@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")  # GPT-2's Conv1D: PEFT sees to it
@pytest.mark.filterwarnings("ignore:The following .*_pattern:RuntimeWarning")  # of fused experts
@pytest.mark.parametrize("attach_first", [True, False])
def test_a_lora_is_corrected_on_top(attach_first: bool, name: str) -> None:
    known, model = under_lora(name), family(name)
    module = surgery(hidden=FAMILIES[name].width, merged_fingerprint=known.mark)
    if attach_first:
        handle = attach(model, module)
        wrapped = lora(model, known.without)
    else:
        wrapped = lora(model, known.without)
        handle = attach(wrapped, module)
    assert fingerprint(wrapped.get_base_model()) == known.mark
    close(logits(wrapped), known.expected)
    handle.detach()
    assert torch.equal(logits(wrapped), known.lora)
    assert torch.equal(logits(wrapped.unload()), known.plain)
    assert fingerprint(model) == known.mark


# -- compiled --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools:UserWarning")
@pytest.mark.parametrize(
    "name",
    [n if n in COMPILED_FAST else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES],
)
def test_a_model_that_was_compiled_and_run_is_corrected(name: str) -> None:
    model = family(name)
    compiled: Any = torch.compile(model, backend="eager")
    plain = logits(compiled)
    with attach(compiled, surgery_for(name)):
        close(logits(compiled), formula(name))
    assert torch.equal(logits(compiled), plain)
    close(plain, logits(model), 1e-5)
