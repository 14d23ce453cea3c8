"""Headers of weights that others made: GGUF, safetensors, LoRA; damaged, or made to mislead."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from .damage import Damage, damaged, damages
from .examples import examples
from .invariants import CHECKS, SEPARATOR, checkpoint, gguf, lora

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"
SECONDS = 5.0


def seeds(name: str) -> list[bytes]:
    return [p.read_bytes() for p in sorted((CORPUS / name).iterdir())]


@pytest.mark.parametrize("name", ["gguf", "checkpoint", "lora"])
@examples(150)
@given(data=st.data(), changes=damages())
def test_any_damage_is_refused_or_read(
    name: str, data: st.DataObject, changes: list[Damage]
) -> None:
    CHECKS[name](damaged(data.draw(st.sampled_from(seeds(name))), changes))


# -- GGUF ------------------------------------------------------------------------------------------

U32, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", U32, value)


def words(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", STRING) + text(value)


def numbers(key: str) -> bytes:
    return text(key) + struct.pack("<IIQI", ARRAY, U32, 1, 3)


def tensor(*shape: int, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
    return text("token_embd.weight") + sizes


def file(*pairs: bytes, tensors: tuple[bytes, ...] = ()) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    return head + b"".join((*pairs, *tensors)) + bytes(64)


LLAMA = words("general.architecture", "llama")
ODD_GGUF = {
    "alignment 0": file(number("general.alignment", 0), tensors=(tensor(1),)),
    "alignments": file(numbers("general.alignment")),
    "alignment in words": file(words("general.alignment", "x")),
    "lists of lists": file(text("x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 20_000),
    "a list without end": file(text("x") + struct.pack("<IIQ", ARRAY, STRING, 2**32)),
    "pairs without end": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1),
    "layers without end": file(LLAMA, number("llama.block_count", 4_000_000_000)),
    "no heads": file(
        LLAMA, number("llama.block_count", 1), number("llama.attention.head_count", 0)
    ),
    "widths": file(LLAMA, number("llama.block_count", 1), numbers("llama.embedding_length")),
    "architectures": file(numbers("general.architecture")),
    "an embedding of one number": file(LLAMA, tensors=(tensor(),)),
    "an offset beyond all": file(tensors=(tensor(1, offset=2**64 - 1),)),
    "a size beyond all": file(tensors=(tensor(2**63, 2**63),)),
    "one token that is no list": file(number("tokenizer.ggml.tokens", 7)),
    "tokens that are numbers": file(numbers("tokenizer.ggml.tokens")),
    "a name of control codes": file(words("\x1b[2J\n", "x"), tensors=(b"\1" * 40,)),
    "nothing": b"",
    "a word": b"GGUF",
}


def in_time(check: Any, data: bytes) -> None:
    start = time.process_time()
    check(data)
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("case", ODD_GGUF)
def test_an_odd_gguf_file_is_refused_or_read(case: str) -> None:
    in_time(gguf, ODD_GGUF[case])


# -- checkpoints and LoRAs -------------------------------------------------------------------------

ODD_CONFIG: dict[str, dict[str, Any]] = {
    "layers without end": {"num_hidden_layers": 10**9},
    "many layers": {"num_hidden_layers": 30_000},
    "a vocabulary without end": {"vocab_size": 10**15},
    "kinds": {"model_type": [1]},
    "no heads": {"num_attention_heads": 0},
    "negative": {"hidden_size": -4},
    "text in text": {"text_config": {"text_config": {}}},
}
ODD_INDEX: dict[str, Any] = {
    "above": {"weight_map": {"a": "../../etc/passwd"}},
    "NUL": {"weight_map": {"a": "a\0b"}},
    "long": {"weight_map": {"a": "a" * 500}},
    "half a letter": {"weight_map": {"a": "\ud800"}},
    "a number": {"weight_map": {"a": 3}},
    "a list": {"weight_map": ["a"]},
    "a number alone": 3,
}


@pytest.mark.parametrize("case", ODD_CONFIG)
def test_an_odd_configuration_is_refused_or_read(case: str) -> None:
    config, weights = (CORPUS / "checkpoint" / "llama").read_bytes().split(SEPARATOR)
    changed = json.dumps(json.loads(config) | ODD_CONFIG[case]).encode()
    in_time(checkpoint, SEPARATOR.join([changed, weights]))


@pytest.mark.parametrize("case", ODD_INDEX)
def test_an_odd_index_is_refused_or_read(case: str) -> None:
    sound = (CORPUS / "checkpoint" / "llama").read_bytes()
    in_time(checkpoint, SEPARATOR.join([sound, json.dumps(ODD_INDEX[case]).encode()]))


PLACE = "base_model.model.model.layers.0.self_attn.q_proj."
A, B = torch.ones(2, 4), torch.ones(4, 2)
ODD_LORA: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]] = {
    "an open bracket": ({"rank_pattern": {"((": 1}}, {"lora_A.weight": A, "lora_B.weight": B}),
    "a pattern without end": ({"rank_pattern": {"(a+)+$": 1}}, {f"{'a' * 40}b.lora_A.weight": A}),
    "patterns in a list": ({"rank_pattern": [["a"]]}, {"lora_A.weight": A}),
    "patterns that are a number": ({"rank_pattern": 3}, {"lora_A.weight": A}),
    "no kind": ({"peft_type": None}, {"lora_A.weight": A}),
    "kinds": ({"peft_type": [1]}, {"lora_A.weight": A}),
    "targets": ({"target_modules": [1, None, {"a": 1}]}, {"lora_A.weight": A, "lora_B.weight": B}),
    "a number as a half": ({}, {"lora_A.weight": torch.tensor(1.0), "lora_B.weight": B}),
    "one number alone": ({}, {"lora_B.weight": torch.tensor(1.0)}),
    "vectors": ({}, {"lora_A.weight": torch.ones(2), "lora_B.weight": torch.ones(4)}),
    "vectors of an embedding": (
        {},
        {"lora_embedding_A": torch.ones(2), "lora_embedding_B": torch.ones(2)},
    ),
    "integers": ({}, {"lora_A.weight": A.to(torch.int8), "lora_B.weight": B.to(torch.int8)}),
    "float8": (
        {},
        {
            "lora_A.weight": A.to(torch.float8_e4m3fn),
            "lora_B.weight": B.to(torch.float8_e4m3fn),
        },
    ),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize("case", ODD_LORA)
def test_an_odd_lora_is_refused_or_read(case: str) -> None:
    changes, tensors = ODD_LORA[case]
    config = json.loads((CORPUS / "lora" / "projection").read_bytes().partition(SEPARATOR)[0])
    content = save({PLACE + name: value for name, value in tensors.items()})
    in_time(lora, json.dumps(config | changes).encode() + SEPARATOR + content)
