"""Tiny checkpoints that differ in weights, words, templates and side files; for merging."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from surgekit.findings import Finding
from surgekit.models.loading import save_checkpoint

Array = npt.NDArray[np.float64]
Tensors = dict[str, Array]
VOCAB = 128
PAIR = [{"model": "math"}, {"model": "code"}]
TA = {"merge_method": "task_arithmetic"}
UNION: dict[str, Any] = {
    "merge_method": "linear",
    "tokenizer": {"source": "union"},
    "parameters": {"weight": 1},
}


def make_checkpoint(
    folder: Path,
    seed: int,
    *,
    words: tuple[str, ...] = (),
    template: str | None = "{{ messages }}",
    layers: int = 2,
    hidden: int = 32,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A tiny Llama with a word tokenizer (its own ``words`` last) and all side files.

    Checkpoints of any seed are fine-tunes of one random model, which none of them is.
    """
    vocabulary = ["<unk>", "<s>", "</s>"]
    vocabulary += [f"w{i}" for i in range(VOCAB - len(vocabulary) - len(words))] + list(words)
    inner = Tokenizer(WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=48,
            vocab_size=VOCAB,
            initializer_range=0.2,
        )
    )
    # Otherwise all norms are 1 and no merge shows in them.
    torch.manual_seed(seed + 1)
    for tensor in model.state_dict().values():
        tensor.add_(torch.randn_like(tensor) * 0.1)
    torch.nn.Module.to(model, dtype)
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.25 + seed)
    save_checkpoint(model, tokenizer, folder)
    (folder / "tokenizer.model").write_bytes(b"sentencepiece of %d" % seed)
    return folder


def make_zoo(root: Path) -> dict[str, Path]:
    """A base and three experts; each has words and a template of its own."""
    return {
        name: make_checkpoint(root / name, seed, words=words, template=f"{name} {{{{ messages }}}}")
        for seed, (name, words) in enumerate(
            {
                "base": (),
                "math": ("plus", "minus", "sum"),
                "code": ("def", "class", "plus"),
                "chat": ("hi", "bye", "thanks"),
            }.items()
        )
    }


def tensors(folder: Path) -> Tensors:
    return {
        k: v.double().numpy()
        for file in sorted(folder.glob("*.safetensors"))
        for k, v in load_file(file).items()
    }


def entries(**parameters: Any) -> list[dict[str, Any]]:
    """mergekit's ``models`` for math and code; each parameter is a pair."""
    return [
        {"model": name, "parameters": {k: v[i] for k, v in parameters.items()}}
        for i, name in enumerate(("math", "code"))
    ]


def digest(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


def placed(config: Any, zoo: dict[str, Path]) -> Any:
    """A configuration with folders for names, as mergekit by itself needs it."""
    if isinstance(config, dict):
        return {
            k: str(zoo[v])
            if k in ("model", "base_model") and isinstance(v, str)
            else placed(v, zoo)
            for k, v in config.items()
        }
    return [placed(v, zoo) for v in config] if isinstance(config, list) else config


def mergekit_alone(config: dict[str, Any], zoo: dict[str, Path], out: Path) -> str:
    """``silent``: it made a model of it; ``late``: it died at work; ``early``: before."""
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    options = MergeOptions(write_model_card=False, quiet=True, random_seed=0, copy_tokenizer=False)
    try:
        run_merge(MergeConfiguration.model_validate(placed(config, zoo)), str(out), options)
    except Exception:  # noqa: BLE001 - whatever it dies of
        return "late" if out.is_dir() else "early"
    return "silent"


def expect_told(found: Sequence[Finding], level: str, said: str) -> None:
    """A finding of this level says so, and none is graver."""
    assert any(f.level == level and said in f.message for f in found), found
    worst = {"note": 0, "warning": 1, "error": 2}
    assert all(worst[f.level] <= worst[level] for f in found), found
