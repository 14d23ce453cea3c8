"""Quantised checkpoints that transformers can run on a CPU: bitsandbytes, 8 and 4 bits."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import surgekit
from surgekit.states.prompts import Prompt

from .tiny import checkpoint, llama, tokenizer

pytest.importorskip("bitsandbytes", reason="needs the extra: pip install '.[quantized]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # bitsandbytes warns of casts and old calls


@pytest.mark.parametrize(("bits", "least_cosine"), [(8, 0.99), (4, 0.7)])
def test_quantized_checkpoint_is_loaded_captured_and_corrected(
    tmp_path: Path, bits: int, least_cosine: float
) -> None:
    dense = checkpoint(tmp_path / "dense", llama(0, hidden_size=64, intermediate_size=128))
    config = BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = AutoModelForCausalLM.from_pretrained(
            dense, quantization_config=config, device_map="cpu"
        )
        quantized.save_pretrained(tmp_path / "small")
        tokenizer().save_pretrained(tmp_path / "small")
    model = surgekit.load_model(tmp_path / "small")
    assert type(model.model.layers[0].mlp.up_proj).__name__.startswith("Linear" + str(bits)[0])
    prompts = [Prompt(prompt=f"say {i}", response="yes, " * i) for i in range(1, 5)]
    tokens = surgekit.tokenize_prompts(prompts, surgekit.load_tokenizer(tmp_path / "small"))
    z = surgekit.capture(model, tokens, dtype=torch.float32)
    y = surgekit.capture(surgekit.load_model(dense), tokens, entropies=True, dtype=torch.float32)
    assert least_cosine < surgekit.measure_bias(z, y).mean()["cosine"] < 1
    module = surgekit.calibrate(z, y, surgekit.SurgeryConfig(module="linear", hidden_size=64))
    with surgekit.attach(model, module):  # by its fingerprint the same model again
        corrected = surgekit.capture(model, tokens, dtype=torch.float32)
    before, after = (surgekit.measure_bias(s, y).mean()["l1"] for s in (z, corrected))
    assert after < before
