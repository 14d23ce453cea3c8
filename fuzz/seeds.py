"""Write the seed corpus and the dictionaries of the fuzzers: ``python fuzz/seeds.py``.

Small sound inputs of every kind, all made of numbers that are the same on any machine. Running this
again changes the order of metadata in ``corpus/states``, which safetensors draws, and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "src")]
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tests.invariants import SEPARATOR, scratch  # noqa: E402
from tests.recipes import FULL, SMALL  # noqa: E402

from surgekit.adapters.files import CONFIG_FILE, TENSOR_FILE, save_adapter  # noqa: E402
from surgekit.files import CHECKSUM, read_tensors  # noqa: E402
from surgekit.models.anatomy import Head  # noqa: E402
from surgekit.states.heads import save_head  # noqa: E402
from surgekit.states.prompts import pack_tokens  # noqa: E402
from surgekit.states.states import States, save_states  # noqa: E402
from surgekit.surgery.config import SurgeryConfig  # noqa: E402
from surgekit.surgery.modules import SurgeryModule  # noqa: E402

FORMS: dict[str, dict[str, Any]] = {
    "standard": {"module": "standard", "rank": 1},
    "darts": {"module": "darts", "rank": 1, "max_positions": 3},
    "parallel": {"module": "parallel", "rank": 2, "max_positions": 2},
    "mean-shift": {"module": "mean-shift"},
    "table": {"module": "table", "max_positions": 2},
    "linear": {"module": "linear"},
    "linear-cut": {"module": "linear", "rank": 1},
}


def adapters() -> dict[str, bytes]:
    """One adapter of every form; darts also without checksums, and in bfloat16."""
    made: dict[str, bytes] = {}
    for form, sizes in FORMS.items():
        module = SurgeryModule(SurgeryConfig(hidden_size=3, **sizes))
        with torch.no_grad():
            for parameter in module.parameters():
                count = parameter.numel()
                parameter.copy_((torch.arange(count) - count / 2).reshape(parameter.shape) / 8)
        module.record = {"merged_fingerprint": f"sf1-{'0' * 64}", "tokens": 5}
        for name, kind in ((f"{form}-bf16", torch.bfloat16), (form, torch.float32)):
            with scratch() as folder:
                save_adapter(module.to(kind), folder / "a", domain="math", method="m@both")
                settings = (folder / "a" / CONFIG_FILE).read_bytes()
                tensors = (folder / "a" / TENSOR_FILE).read_bytes()
            made[name] = settings + SEPARATOR + tensors
        document = json.loads(settings)
        bare = {k: v for k, v in document.items() if not k.endswith("_sha256")}
        made[f"{form}-bare"] = json.dumps(bare).encode() + SEPARATOR + tensors
    return made


def states() -> dict[str, bytes]:
    """States and heads, with their checksum and without: behind one no mutation gets far."""
    made: dict[str, bytes] = {}
    with scratch() as folder:
        path = folder / "x.safetensors"
        tokens = pack_tokens([[1, 2, 3], [4], [5, 6]], [1, 1, 2], cut=1)
        for kind in (torch.bfloat16, torch.float16, torch.float32):
            hidden = (torch.arange(12.0).reshape(6, 2) / 4).to(kind)
            entropies = None if kind == torch.float16 else torch.arange(6.0) / 2
            save_states(States(hidden, tokens, entropies, "sf1-0", 2), path)
            made[f"states-{str(kind).removeprefix('torch.')}"] = path.read_bytes()
        weight = torch.arange(8.0).reshape(4, 2) / 8
        save_head(Head(weight, torch.arange(4.0), 0.25, 30.0), path)
        made["head"] = path.read_bytes()
        save_head(Head(weight.bfloat16()), path)
        made["head-bfloat16"] = path.read_bytes()
        for name, content in list(made.items()):
            path.write_bytes(content)
            metadata = read_tensors(path, "seed")[1]
            assert CHECKSUM not in metadata
            save_file(load_file(path), path, metadata=metadata)
            made[f"{name}-bare"] = path.read_bytes()
    return made


def recipes() -> dict[str, bytes]:
    """Recipes in block and flow style, with anchors, and of a folder merged already."""
    shared = SMALL.replace("./math", "&e ./math").replace("merge:", "body: *e\nmerge:")
    brought = SMALL.replace("{merge_method: linear}", "{folder: ./merged}")
    flow = json.dumps(
        {
            "base": {"package": "p"},
            "domains": {"m": {"expert": {"model": "a/b"}, "calibration": "c", "test": "t"}},
            "merge": "m.yaml",
            "surgery": [{"module": ["add", "parallel"], "rank": [1, None], "loss": "kl"}],
        }
    )
    texts = {"small": SMALL, "full": FULL, "shared": shared, "brought": brought, "flow": flow}
    return {name: text.encode() for name, text in texts.items()}


def prompts() -> dict[str, bytes]:
    """Prompts of both forms, of several scripts, with the tokenizer's special tokens spelt out."""
    items: dict[str, list[dict[str, Any]]] = {
        "plain": [{"prompt": "a", "response": "b", "id": 1}, {"prompt": "c"}],
        "chat": [
            {
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": "u"},
                    {"role": "assistant", "content": "r"},
                ]
            }
        ],
        "scripts": [{"prompt": "é中ש🙂\u2028\u202e", "response": "\x00\x1b\ud7ff"}],
        "special": [{"prompt": "<|im_end|>\n<|im_start|>x", "response": "<|im_end|> \n"}],
        "blank": [{"prompt": "a", "response": ""}, {"prompt": "b", "response": " \n"}],
    }
    made = {
        name: "".join(json.dumps(i, ensure_ascii=False) + "\n" for i in lines).encode()
        for name, lines in items.items()
    }
    made["escaped"] = json.dumps(items["scripts"][0]).encode()
    made["surrogate"] = rb'{"prompt": "\ud800", "response": "\ud83d\ude42"}'
    return made


def merges() -> dict[str, bytes]:
    """mergekit configurations with models in every place where one may stand."""
    texts = {
        "short": "merge_method: linear\n",
        "models": (
            "merge_method: ties\nbase_model: base\nmodels:\n  - model: math\n"
            "    parameters: {weight: 1, density: [0.1, 0.5]}\n  - model: {model: code}\n"
            "parameters: {normalize: true, weight: 0.5}\ndtype: float32\n"
        ),
        "slices": (
            "merge_method: passthrough\nslices:\n  - sources:\n"
            "      - {model: math, layer_range: [0, 1]}\n  - sources:\n"
            "      - {model: code, layer_range: [1, 2], parameters: {scale: 1}}\n"
        ),
        "modules": (
            "merge_method: slerp\nbase_model: math\nmodules:\n  text:\n"
            "    models: [{model: math}, {model: code}]\nparameters: {t: 0.5}\n"
        ),
        "tokenizer": (
            "merge_method: linear\nmodels: [{model: math}]\ntokenizer:\n  source: union\n"
            "  tokens:\n    a: {source: math, force: true}\n"
            "    b: {source: {kind: model_token, model: code, token: b}}\n    c: {source: base}\n"
        ),
        "source": "merge_method: linear\nmodels: [{model: math}]\ntokenizer_source: base\nx: 1\n",
        "reference": (
            "merge_method: task_arithmetic\nbase_model: {model: {path: base}, lora: null}\n"
            "models: [{model: {model: {path: math, revision: ''}, override_architecture: x}}]\n"
        ),
    }
    return {name: text.encode() for name, text in texts.items()}


def ggufs() -> dict[str, bytes]:
    """A tiny Llama as GGUF, with tokens, and a header alone."""
    from gguf import GGUFWriter

    made: dict[str, bytes] = {}
    for name, whole in (("llama", True), ("header", False)):
        with scratch() as folder:
            path = folder / "m.gguf"
            writer = GGUFWriter(path, "llama")
            writer.add_context_length(16)
            writer.add_embedding_length(4)
            writer.add_block_count(1)
            writer.add_feed_forward_length(4)
            writer.add_head_count(1)
            writer.add_layer_norm_rms_eps(1e-5)
            writer.add_rope_freq_base(10000.0)
            writer.add_token_list(["a", "b", "é"])
            writer.add_array("x.flags", [1, 2, 3])
            if whole:
                writer.add_tensor("token_embd.weight", np.zeros((3, 4), dtype=np.float32))
                writer.add_tensor("output_norm.weight", np.ones(4, dtype=np.float16))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            made[name] = path.read_bytes()
    return made


TINY = {
    **{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1},
    **{"num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 8},
}


def checkpoints() -> dict[str, bytes]:
    """Configuration, weights and index of a tiny model; a text model inside another."""
    with scratch() as folder:
        path = folder / "m.safetensors"
        save_file({"model.norm.weight": torch.ones(4), "lm_head.weight": torch.zeros(8, 4)}, path)
        weights = path.read_bytes()
    named = ("model.norm.weight", "lm_head.weight")
    index = {"weight_map": dict.fromkeys(named, "model.safetensors")}
    nested = {"model_type": "llava", "text_config": TINY, "architectures": ["X"]}
    made = {"llama": TINY, "nested": nested, "tied": TINY | {"tie_word_embeddings": True}}
    parts = {name: [json.dumps(config).encode(), weights] for name, config in made.items()}
    parts["indexed"] = [*parts["llama"], json.dumps(index).encode()]
    return {name: SEPARATOR.join(content) for name, content in parts.items()}


def loras() -> dict[str, bytes]:
    """PEFT adapters of a projection and of the embedding."""
    made: dict[str, bytes] = {}
    outer = "base_model.model.model."
    pairs = {
        "projection": ("layers.0.self_attn.q_proj.lora_A.weight", (2, 4), "lora_B.weight", (4, 2)),
        "embedding": ("embed_tokens.lora_embedding_A", (2, 8), "lora_embedding_B", (4, 2)),
    }
    for name, (down, down_shape, up, up_shape) in pairs.items():
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
        config |= {"base_model_name_or_path": "org/base", "rank_pattern": {}}
        with scratch() as folder:
            path = folder / "a.safetensors"
            other = f"{outer}{down.rpartition('.lora_')[0]}.{up}"
            tensors = {f"{outer}{down}": torch.ones(down_shape), other: torch.ones(up_shape)}
            save_file(tensors, path)
            made[name] = json.dumps(config).encode() + SEPARATOR + path.read_bytes()
    return made


WORDS: dict[str, list[str]] = {
    "adapter": [
        *('"format"', '"surgery"', '"module"', '"hidden_size"', '"rank"', '"max_positions"'),
        *('"record"', '"domain"', '"tensors_sha256"', '"settings_sha256"', '"dtype"', '"shape"'),
        *('"data_offsets"', '"F32"', '"BF16"', '"F8_E4M3"', '"C64"', '"I8"', "null", "NaN"),
        *('"linear"', '"darts"', '"add"', '"left"', '"right"', '"weight"', '"offset"', "1e400"),
    ],
    "states": [
        *('"hidden"', '"ids"', '"offsets"', '"response_starts"', '"entropies"', '"positions"'),
        *('"__metadata__"', '"format"', '"cut"', '"batch_size"', '"sha256"', '"dtype"', '"shape"'),
        *('"data_offsets"', '"I64"', '"I32"', '"BF16"', '"F16"', '"BOOL"', '"scale"', '"softcap"'),
    ],
    "recipe": [
        *("base:", "domains:", "merge:", "surgery:", "seeds:", "expert:", "calibration:", "lora:"),
        *("test:", "file:", "items:", "module:", "loss:", "rank:", "ridge:", "folder:", "format:"),
        *("&a ", "*a", "<<: *a", "!!", "? ", "|-\n", ">\n", "---\n", "...\n", "!!binary ", ".nan"),
        *("2020-01-01", "1_0", "0x1F", "190:20:30", "~", "{{ prompt }}", "!!int ", "!!set ", "\n"),
    ],
    "prompts": [
        *('"prompt"', '"response"', '"messages"', '"role"', '"content"', '"assistant"', '"id"'),
        *("<|im_end|>", "<|im_start|>", r"\u0000", r"\ud800", r"\u2028", r"\n", "NaN", "1e999"),
    ],
    "merge": [
        *("merge_method:", "base_model:", "models:", "model:", "slices:", "sources:", "modules:"),
        *("parameters:", "weight:", "tokenizer:", "tokenizer_source:", "source:", "tokens:"),
        *("kind:", "lora:", "revision:", "override_architecture:", "layer_range:", "math"),
        *("linear", "ties", "slerp", "task_arithmetic", "passthrough", "union", "&a ", "*a", "+"),
        *("@", "path:", "base"),
    ],
    "gguf": [
        *("GGUF", "general.architecture", "general.alignment", "general.name", "llama", "phi3"),
        *("llama.block_count", "llama.context_length", "tokenizer.ggml.tokens", "output.weight"),
        *("\x08\0\0\0", "\x09\0\0\0", "\x04\0\0\0", "\0\0\0\0\0\0\0\0", "token_embd.weight"),
    ],
    "checkpoint": [
        *('"model_type"', '"llama"', '"gpt2"', '"num_hidden_layers"', '"text_config"'),
        '"weight_map"',
        *('"auto_map"', '"quantization_config"', '"architectures"', '"_name_or_path"', '"dtype"'),
        *('"vocab_size"', '"tie_word_embeddings"', '"data_offsets"', '"shape"', "1e9", "-1", "{}"),
    ],
    "lora": [
        *('"peft_type"', '"LORA"', '"r"', '"rank_pattern"', '"target_modules"', '"lora_alpha"'),
        *('"base_model_name_or_path"', '"layers_to_transform"', '"bias"', '"modules_to_save"'),
        *("lora_A", "lora_B", "lora_embedding_A", ".weight", "base_model.model.", '"shape"', "(("),
    ],
}  # fmt: skip


def _escaped(word: str) -> str:
    """A word as libFuzzer's dictionaries spell it."""
    return "".join(c if c.isprintable() and c not in '"\\' else f"\\x{ord(c):02X}" for c in word)


def main() -> None:
    """Write ``corpus/NAME/*`` and ``dictionaries/NAME.txt`` anew."""
    made = {
        "adapter": adapters(),
        "states": states(),
        "recipe": recipes(),
        "prompts": prompts(),
        "merge": merges(),
        "gguf": ggufs(),
        "checkpoint": checkpoints(),
        "lora": loras(),
    }
    for name, seeds in made.items():
        folder = HERE / "corpus" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for label, content in seeds.items():
            (folder / label).write_bytes(content)
        dictionary = HERE / "dictionaries" / f"{name}.txt"
        dictionary.parent.mkdir(exist_ok=True)
        dictionary.write_text("".join(f'"{_escaped(w)}"\n' for w in WORDS[name]), encoding="ascii")


if __name__ == "__main__":
    main()
