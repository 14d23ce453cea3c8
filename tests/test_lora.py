"""LoRA experts: folded exactly into the base they belong to, and into no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from surgekit.models.fingerprint import fingerprint
from surgekit.models.loading import (
    is_plain_folder,
    load_model,
    load_tokenizer,
    materialize,
    parse_dtype,
)
from surgekit.models.source import ModelSource

from .sources import edit, lora, refuse
from .tiny import TEMPLATE, checkpoint, llama


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "model", llama(1))


def folded(base: dict[str, Tensor], adapter: Path, kind: torch.dtype) -> dict[str, Tensor]:
    """W + 2·B·A in float64, rounded once."""
    low = {n: t.double() for n, t in load_file(adapter / "adapter_model.safetensors").items()}
    result = {n: t.to(kind) for n, t in base.items()}
    for name in low:
        if name.endswith(".lora_A.weight"):
            target = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            product = low[name.replace("lora_A", "lora_B")] @ low[name]
            result[f"{target}.weight"] = (base[f"{target}.weight"].double() + 2 * product).to(kind)
    return result


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [("float32", None), ("float32", "bf16"), ("bf16", None), ("bf16", "fp32"), ("fp16", None)],
)
def test_a_lora_is_folded_exactly_and_rounded_once(
    stored: str, dtype: str | None, tmp_path: Path
) -> None:
    kind = parse_dtype(stored)
    target = parse_dtype(dtype) or kind
    assert kind is not None
    assert target is not None
    base = checkpoint(tmp_path / "base", llama(1, dtype=kind))
    adapter = lora(tmp_path / "lora", llama(1))
    model = load_model({"model": str(base), "lora": str(adapter)}, dtype=dtype)
    before = llama(1, dtype=kind).state_dict()
    expected = folded(before, adapter, target)
    state, off, changed = model.state_dict(), 0, 0
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert state[name].dtype == target
        # Sums in float32 may fall on the other side of a rounding now and then.
        torch.testing.assert_close(state[name], tensor, rtol=torch.finfo(target).eps, atol=1e-6)
        off += int((state[name] != tensor).sum())
        changed += int((tensor != before[name].to(target)).sum())
    assert changed > 0.99 * 2 * (32 * 32 + 32 * 48)
    assert off < (0.5 if target == torch.float32 else 0.002) * changed
    assert (model.dtype, model.config.dtype, model.training) == (target, target, False)
    assert not any("lora" in n for n, _ in model.named_modules())


def test_ways_to_name_the_base_of_a_lora(folder: Path, tmp_path: Path) -> None:
    adapter = lora(tmp_path / "lora", llama(1), folder)
    expected = folded(llama(1).state_dict(), adapter, torch.bfloat16)
    for source, base in (
        (str(adapter), None),
        ({"lora": str(adapter)}, folder),
        ({"lora": str(adapter)}, {"model": str(folder)}),
    ):
        model = load_model(source, base=base, dtype="bf16")
        off = sum(int((model.state_dict()[n] != t).sum()) for n, t in expected.items())
        assert off < 5
    assert load_tokenizer(str(adapter)).chat_template == TEMPLATE
    assert not is_plain_folder(ModelSource.parse(str(adapter)))
    assert is_plain_folder(ModelSource.parse(str(folder)))
    edit(adapter / "adapter_config.json", base_model_name_or_path=None)
    refuse(str(adapter), "names no base model")
    edit(adapter / "adapter_config.json", base_model_name_or_path=5)
    refuse(str(adapter), "not a model source")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"hidden_size": 16}, ["size mismatch", "[4, 16]", "[4, 32]"]),
        ({"num_hidden_layers": 1}, ["does not fit", "missing", "layers.1"]),
        ({"num_hidden_layers": 4}, ["does not fit", "8 of its weights", "layers.2"]),
    ],
)
def test_a_lora_of_another_model_is_refused(
    sizes: dict[str, int], words: list[str], folder: Path, tmp_path: Path
) -> None:
    adapter = lora(tmp_path / "lora", llama(1, **sizes))
    refuse({"model": str(folder), "lora": str(adapter)}, *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: edit(f / "adapter_config.json", target_modules=["c_attn"]), ["c_attn"]),
        (lambda f: edit(f / "adapter_config.json", peft_type="NONE_SUCH"), ["NONE_SUCH"]),
        (lambda f: (f / "adapter_config.json").write_text("[]"), ["adapter_config.json", "list"]),
        (lambda f: (f / "adapter_config.json").write_text("{"), ["adapter_config.json", "JSON"]),
        (lambda f: (f / "adapter_config.json").unlink(), ["no adapter_config.json"]),
        (lambda f: (f / "adapter_model.safetensors").unlink(), ["no adapter_model"]),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"x" * 99), ["damaged"]),
    ],
)
def test_a_broken_lora_is_refused(
    change: Callable[[Path], Any], words: list[str], folder: Path, tmp_path: Path
) -> None:
    adapter = lora(tmp_path / "lora", llama(1))
    change(adapter)
    refuse({"model": str(folder), "lora": str(adapter)}, *words)


def test_a_source_is_written_out_as_a_plain_folder(folder: Path, tmp_path: Path) -> None:
    source = {"model": str(folder), "lora": str(lora(tmp_path / "lora", llama(1)))}
    materialize(source, tmp_path / "out", dtype="bf16")
    model = load_model(tmp_path / "out")
    assert fingerprint(model) == fingerprint(load_model(source, dtype="bf16"))
    assert fingerprint(model) != fingerprint(llama(1))
    assert model.dtype == torch.bfloat16
    assert load_tokenizer(tmp_path / "out").chat_template == TEMPLATE
