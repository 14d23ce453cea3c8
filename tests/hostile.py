"""Files that would do harm if they were believed, and a model that needs its own code."""

from __future__ import annotations

import functools
import json
import operator
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .runs import DOMAINS, SPLITS
from .tiny import jsonl, prompts, tokenizer

MODEL_CODE = """
from pathlib import Path

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

Path({mark!r}).touch()


class MixerConfig(PreTrainedConfig):
    model_type = "mixer_of_a_test"

    def __init__(self, vocab_size=320, hidden_size=32, num_hidden_layers=2, **rest):
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers = num_hidden_layers
        super().__init__(**rest)


class MixerModel(PreTrainedModel):
    config_class = MixerConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        count = config.num_hidden_layers
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.norm = nn.LayerNorm(width)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **rest):
        x = self.embed_tokens(input_ids)
        counts = torch.arange(1, x.shape[1] + 1)[:, None]
        for layer in self.layers:
            x = x + torch.tanh(layer(x.cumsum(1) / counts))
        return BaseModelOutput(last_hidden_state=self.norm(x))


class MixerForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = MixerConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.model = MixerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **rest):
        hidden = self.model(input_ids, attention_mask, position_ids).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden))
"""


class Call:
    """Pickles as a call of ``function``, which unpickling would make."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def payloads(mark: Path) -> dict[str, Any]:
    """Objects whose pickles leave ``mark`` when they are believed."""
    touch = f"touch {mark}"
    return {
        "system": Call(os.system, touch),
        "exec": Call(exec, f"open({str(mark)!r}, 'w').close()"),
        "eval": Call(eval, f"__import__('pathlib').Path({str(mark)!r}).touch()"),
        "partial of a call": Call(functools.partial(os.system, touch)),
        "method of a path": Call(operator.methodcaller("touch"), mark),
        "in a list in a dict": {"step": [1, {"state": Call(os.system, touch)}]},
    }


def pickled(file: Path, payload: Any, tensors: dict[str, Any], form: str = "zip") -> Path:
    """A ``.bin`` of ``tensors`` with a payload among them, in one of torch's two forms or bare."""
    content = {**tensors, "optimizer": payload}
    if form == "bare":
        file.write_bytes(pickle.dumps(payload))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
    return file


def poisoned(folder: Path, payload: Any, form: str = "zip") -> Path:
    """A checkpoint or LoRA whose weights become a ``.bin`` with a payload."""
    for name, old in (("model", "pytorch_model"), ("adapter_model", "adapter_model")):
        weights = folder / f"{name}.safetensors"
        if weights.is_file():
            pickled(folder / f"{old}.bin", payload, load_file(weights), form)
            weights.unlink()
    return folder


def mixer(folder: Path, mark: Path, seed: int) -> dict[str, torch.Tensor]:
    """A model that no library knows: its code lies beside it and leaves ``mark`` when it is run."""
    shapes = {"model.embed_tokens": (320, 32), "lm_head": (320, 32), "model.norm": (32,)}
    shapes |= {f"model.layers.{i}": (32, 32) for i in range(2)}
    biases = {f"{n}.bias": (32,) for n in shapes if "layers" in n or "norm" in n}
    common, own = (torch.Generator().manual_seed(s) for s in (7, 100 + seed))
    tensors = {
        name: 0.3 * torch.randn(shape, generator=common) + 0.1 * torch.randn(shape, generator=own)
        for name, shape in ({f"{n}.weight": s for n, s in shapes.items()} | biases).items()
    }
    tokenizer().save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    classes = {"AutoConfig": "MixerConfig", "AutoModelForCausalLM": "MixerForCausalLM"}
    config = {
        "architectures": ["MixerForCausalLM"],
        "model_type": "mixer_of_a_test",
        "auto_map": {auto: f"modeling_mixer.{name}" for auto, name in classes.items()},
        **{"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "dtype": "float32"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_mixer.py").write_text(MODEL_CODE.format(mark=str(mark)))
    return tensors


def mixer_world(root: Path, mark: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The small world of ``runs`` made of such models; returns their weights by name."""
    made = {name: mixer(root / name, mark, s) for s, name in enumerate(("base", *DOMAINS))}
    for name in DOMAINS:
        for split in SPLITS:
            jsonl(root / "data" / name / f"{split}.jsonl", prompts(10, f"{name} {split}"))
    return made


def mixer_logits(tensors: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """The same model by hand, in float64."""
    w = {name: t.double() for name, t in tensors.items()}
    x = w["model.embed_tokens.weight"][ids]
    counts = torch.arange(1, len(ids) + 1)[:, None]
    for i in range(2):
        mean = x.cumsum(0) / counts
        layer = f"model.layers.{i}"
        x = x + torch.tanh(mean @ w[f"{layer}.weight"].T + w[f"{layer}.bias"])
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    x = x * w["model.norm.weight"] + w["model.norm.bias"]
    return x @ w["lm_head.weight"].T
