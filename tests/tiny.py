"""Tiny random models, tokenizers and prompt files that the tests are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from surgekit.models.loading import save_checkpoint

VOCABULARY = 320
HIDDEN = 32
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a byte, so that any text has tokens; ``<|im_end|>`` is eos and padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(BPE({c: i for i, c in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )
    made.chat_template = template
    return made


def llama(seed: int = 0, *, dtype: torch.dtype = torch.float32, **sizes: Any) -> LlamaForCausalLM:
    """A random Llama of two layers; its logits are far from uniform."""
    settings = {
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "bos_token_id": 257,
        "eos_token_id": 258,
        "pad_token_id": 258,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(settings | sizes))).to(dtype)
    return model.eval().requires_grad_(False)


def shifted(model: LlamaForCausalLM, seed: int, size: float = 0.05) -> LlamaForCausalLM:
    """A copy with all weights moved at random: an expert tuned from ``model``."""
    copy = LlamaForCausalLM(model.config).to(model.dtype)
    copy.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in copy.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * size * parameter.std()
            parameter.add_(noise.to(parameter.dtype))
    return copy.eval().requires_grad_(False)


def checkpoint(folder: Path, model: LlamaForCausalLM, template: str | None = TEMPLATE) -> Path:
    """Write a model with its tokenizer and chat template as a folder."""
    save_checkpoint(model, tokenizer(template), folder)
    return folder


def jsonl(path: Path, items: Iterable[dict[str, Any]]) -> Path:
    """Write items as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(i) + "\n" for i in items), encoding="utf-8")
    return path


def prompts(count: int, label: str = "item") -> list[dict[str, str]]:
    """Short prompts with responses, all different."""
    return [
        {"prompt": f"{label} {i}: count {'on ' * (i % 4)}", "response": f"{i} and {i * 7 % 11}."}
        for i in range(count)
    ]
