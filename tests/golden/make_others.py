"""Writes what ``make.py`` does not: fingerprints, states, a head, a checked adapter, a run.

Run once, for format 1, as ``PYTHONPATH=src:. python tests/golden/make_others.py``.
What is there already is left as it is: files of that format must be readable for ever.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 4,
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "max_position_embeddings": 32,
    "model_type": "llama",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-06,
    "dtype": "float32",
    "vocab_size": 16,
}
SHAPES = {
    "lm_head.weight": (16, 8),
    "model.embed_tokens.weight": (16, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
    "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.norm.weight": (8,),
}
LEFT_OUT = shutil.ignore_patterns(".lock", "hashes.json", "merged", "states", ".seeds")
# Halfway between two bfloat16 values (to even, down and up), beyond halfway, minus zero, a
# subnormal, too small for float16, and too large for its precision.
ODD = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0, 2.0**-130, 3e-9, -65519.0, 1 / 3]


def checkpoints() -> None:
    """Two checkpoints, one tied, byte by byte, and their fingerprints computed with numpy."""
    expected = {}
    for kind, tied in (("plain", False), ("tied", True)):
        folder = FOLDER / "fingerprint-v1" / kind
        folder.mkdir(parents=True)
        rng = np.random.default_rng(7)
        weights = {n: rng.standard_normal(s).astype("<f4") for n, s in SHAPES.items()}
        weights["model.norm.weight"][:] = ODD
        if tied:
            del weights["lm_head.weight"]
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name, array in weights.items():
            place = [at, at + array.nbytes]
            header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": place}
            at += array.nbytes
        head = json.dumps(header, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
        data = b"".join(a.tobytes() for a in weights.values())
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
        config = json.dumps(CONFIG | {"tie_word_embeddings": tied}, indent=1)
        (folder / "config.json").write_text(config + "\n", encoding="utf-8")
        half = {n: a.astype("<f2").astype("<f4") for n, a in weights.items()}
        expected[kind] = {
            "float32": by_hand(weights),
            "bfloat16": by_hand(weights),  # rounded before or after, it is the same
            "float16": by_hand(half),  # another model: the small values are gone
        }
    write_json(FOLDER / "fingerprint-v1" / "expected.json", expected)


def by_hand(weights: dict[str, np.ndarray]) -> str:
    """The fingerprint as its definition says."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        bits = weights[name].view("<u4").astype(np.uint64)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")  # to nearest, to even
        digest.update(f"{name}:{weights[name].shape}\n".encode())
        digest.update(rounded.tobytes())
    return f"sf1-{digest.hexdigest()}"


def states() -> None:
    """States of two prompts with entropies, and a head with bias and soft cap."""
    from surgekit.models.anatomy import Head
    from surgekit.states.heads import save_head
    from surgekit.states.prompts import TokenizedPrompts
    from surgekit.states.states import States, save_states

    ids = torch.tensor([5, 6, 7, 5, 9])
    tokens = TokenizedPrompts(ids, torch.tensor([0, 3, 5]), torch.tensor([2, 2]), 1)
    hidden = (torch.arange(20).reshape(5, 4) / 8 - 1).bfloat16()
    entropies = torch.tensor([0.0, 0.25, 0.5, 1.5, 2.0])
    model = f"sf1-{'0' * 64}"
    save_states(States(hidden, tokens, entropies, model, 8), FOLDER / "states-v1.safetensors")
    weight, bias = torch.arange(24).reshape(6, 4) / 16, torch.arange(6) / 4
    save_head(Head(weight.bfloat16(), bias.bfloat16(), 0.5, 30.0), FOLDER / "head-v1.safetensors")


def adapter() -> None:
    """One of the adapters of ``adapter-v1`` as it is saved with checksums."""
    from surgekit.adapters.files import load_adapter, save_adapter

    module, info = load_adapter(FOLDER / "adapter-v1" / "darts")
    out = FOLDER / "adapter-v1-checksums"
    save_adapter(module, out, domain=info.domain, method=info.method)


def run() -> None:
    """The results, the markers and the adapters of a small run; its models are left out."""
    from tests.runs import document, make_world, recipe

    from surgekit.pipeline.run import run_recipe

    root = Path(tempfile.gettempdir()) / "world"
    make_world(root)
    made = document(plain_text="data/plain.jsonl")
    made["surgery"].append({"module": "mean-shift", "text": "response"})
    del made["domains"]["code"]
    run_recipe(recipe(root, **made), root / "run")
    out = FOLDER / "run-v1"
    shutil.copytree(root / "run", out, ignore=LEFT_OUT)
    shutil.rmtree(root)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Write what is not there."""
    for name, make in {
        "fingerprint-v1": checkpoints,
        "states-v1.safetensors": states,
        "adapter-v1-checksums": adapter,
        "run-v1": run,
    }.items():
        if not (FOLDER / name).exists():
            make()


if __name__ == "__main__":
    main()
