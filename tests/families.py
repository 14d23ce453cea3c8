"""Tiny random models of many families, with what is known of each from reading its code."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from .oracle import Array, head

WIDTH = 32
VOCABULARY = 320
PAD = 258
"""Padding and end token at once, as many checkpoints have it."""
WINDOW = 5
"""Of sliding or chunked attention: fewer tokens than the tests' sequences have."""


@dataclass(frozen=True)
class Family:
    """One row of the matrix.

    ``logits = cap(scale · (states @ weight.T + bias))``, read off the family's own forward.

    Attributes:
        kind: transformers' model_type.
        settings: of its config, on top of the common ones.
        body, head: where its parts lie.
        scale, softcap: of its logits.
        width: of its last hidden states.
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    body: str = "model"
    head: str = "lm_head"
    scale: float = 1.0
    softcap: float | None = None
    width: int = WIDTH


def _row(kind: str, /, **settings: Any) -> Family:
    names = ("body", "head", "scale", "softcap", "width")
    parts = {n: settings.pop(n) for n in names if n in settings}
    return Family(kind, settings, **parts)


_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 2,
    "short_factor": [1.0, 1.0, 1.0, 1.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}
_MLA = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
}
_HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# All tokens are picked: which of two equal scores is, depends on the shape of the batch.
_SPARSE = _MLA | {"head_dim": 4, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 64}
_WINDOWS = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
_MAMBA2 = {"head_dim": 8, "num_heads": 8, "n_groups": 2, "state_size": 8, "chunk_size": 4}

FAMILIES: dict[str, Family] = {
    "llama": _row("llama"),
    "mistral": _row("mistral", sliding_window=WINDOW),
    "mixtral": _row("mixtral", sliding_window=WINDOW),
    "qwen2": _row("qwen2"),
    "qwen3": _row("qwen3"),
    "qwen2_moe": _row("qwen2_moe"),
    "qwen3_moe": _row("qwen3_moe"),
    "qwen3_next": _row("qwen3_next", **_HYBRID),
    "qwen3_5": _row("qwen3_5_text", **_HYBRID),
    "olmo_hybrid": _row("olmo_hybrid", **_HYBRID),
    "gemma": _row("gemma"),
    "gemma2": _row("gemma2", sliding_window=WINDOW, final_logit_softcapping=2.0, softcap=2.0),
    "gemma3": _row("gemma3_text", **_WINDOWS, final_logit_softcapping=3.0, softcap=3.0),
    "gemma3n": _row(
        "gemma3n_text",
        **_WINDOWS,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=320,
        num_kv_shared_layers=0,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0, 0.0],
        final_logit_softcapping=3.0,
        softcap=3.0,
    ),
    "gemma4": _row(
        "gemma4_text",
        **_WINDOWS,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=320,
        num_kv_shared_layers=0,
        global_head_dim=8,
        final_logit_softcapping=3.0,
        softcap=3.0,
    ),
    "phi": _row("phi"),
    "phi3": _row("phi3", sliding_window=WINDOW),
    "phi3-longrope": _row("phi3", rope_parameters=_LONG, original_max_position_embeddings=2),
    "phimoe": _row("phimoe"),
    "gpt2": _row("gpt2", body="transformer"),
    "gptj": _row("gptj", rotary_dim=4, body="transformer"),
    "gpt_neo": _row(
        "gpt_neo",
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        window_size=WINDOW,
        body="transformer",
    ),
    "gpt_neox": _row("gpt_neox", body="gpt_neox"),
    "gpt_bigcode": _row("gpt_bigcode", body="transformer"),
    "codegen": _row("codegen", rotary_dim=4, body="transformer"),
    "openai-gpt": _row("openai-gpt", body="transformer"),
    "ctrl": _row("ctrl", dff=48, body="transformer"),
    "biogpt": _row("biogpt", body="biogpt", head="output_projection"),
    "opt": _row("opt", ffn_dim=48, word_embed_proj_dim=32, init_std=0.2, body="model.decoder"),
    "opt-350m": _row(
        "opt",
        ffn_dim=48,
        word_embed_proj_dim=16,
        init_std=0.2,
        do_layer_norm_before=False,
        body="model.decoder",
        width=16,
    ),
    "xglm": _row("xglm", ffn_dim=48, init_std=0.2, max_position_embeddings=512),
    "bloom": _row("bloom", body="transformer"),
    "mpt": _row("mpt", d_model=32, n_heads=4, n_layers=2, max_seq_len=64, body="transformer"),
    "falcon": _row("falcon", body="transformer"),
    "falcon-alibi": _row("falcon", alibi=True, bias=True, body="transformer"),
    "falcon-new": _row("falcon", new_decoder_architecture=True, num_kv_heads=2, body="transformer"),
    "olmo": _row("olmo"),
    "olmo2": _row("olmo2"),
    "olmo3": _row("olmo3", **_WINDOWS),
    "olmoe": _row("olmoe"),
    "stablelm": _row("stablelm"),
    "starcoder2": _row("starcoder2", sliding_window=WINDOW),
    "smollm3": _row("smollm3", no_rope_layers=[1, 0]),
    "nemotron": _row("nemotron"),
    "persimmon": _row("persimmon"),
    "cohere": _row("cohere", logit_scale=0.5, scale=0.5),
    "cohere2": _row("cohere2", logit_scale=0.25, sliding_window=WINDOW, scale=0.25),
    "granite": _row("granite", logits_scaling=4.0, scale=0.25),
    "granitemoe": _row("granitemoe", logits_scaling=2.0, scale=0.5),
    "minicpm3": _row("minicpm3", **_MLA, head_dim=4, dim_model_base=16, scale=0.5),
    "deepseek_v2": _row("deepseek_v2", **_MLA),
    "deepseek_v3": _row("deepseek_v3", **_MLA, head_dim=4),
    "deepseek_v32": _row("deepseek_v32", **_SPARSE),
    "dbrx": _row(
        "dbrx",
        d_model=32,
        n_heads=4,
        n_layers=2,
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        ffn_config={
            "hidden_size": 32,
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
        body="transformer",
    ),
    "doge": _row("doge"),
    "jetmoe": _row("jetmoe"),
    "mimo_v2_flash": _row("mimo_v2_flash"),
    "glm4": _row("glm4"),
    "glm_moe_dsa": _row("glm_moe_dsa", **_SPARSE),
    "exaone4": _row("exaone4", **_WINDOWS),
    "ernie4_5": _row("ernie4_5"),
    "helium": _row("helium"),
    "diffllama": _row("diffllama"),
    "nanochat": _row("nanochat", final_logit_softcapping=4.0, softcap=4.0),
    "llama4": _row(
        "llama4_text", attention_chunk_size=WINDOW, intermediate_size_mlp=48, no_rope_layers=[1, 0]
    ),
    "gpt_oss": _row("gpt_oss", sliding_window=WINDOW),
    "mamba": _row("mamba", body="backbone"),
    "falcon_mamba": _row("falcon_mamba", body="backbone"),
    "mamba2": _row("mamba2", **_MAMBA2, body="backbone"),
    "rwkv": _row("rwkv", body="rwkv", head="head"),
    "recurrent_gemma": _row(
        "recurrent_gemma",
        attention_window_size=WINDOW,
        lru_width=32,
        block_types=["recurrent", "attention"],
        logits_soft_cap=3.0,
        softcap=3.0,
    ),
    "jamba": _row(
        "jamba",
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
        mamba_dt_rank=4,
    ),
    "bamba": _row(
        "bamba",
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_n_groups=2,
        mamba_chunk_size=4,
        mamba_d_state=8,
    ),
    "falcon_h1": _row(
        "falcon_h1",
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_ssm=64,
        mamba_n_groups=2,
        mamba_chunk_size=4,
        mamba_d_state=8,
        lm_head_multiplier=0.5,
        scale=0.5,
    ),
    "granitemoehybrid": _row(
        "granitemoehybrid",
        layer_types=["mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_n_groups=2,
        mamba_chunk_size=4,
        mamba_d_state=8,
        logits_scaling=2.0,
        scale=0.5,
    ),
    "nemotron_h": _row(
        "nemotron_h",
        layers_block_type=["mamba", "attention"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        n_groups=2,
        ssm_state_size=8,
        initializer_range=0.1,
    ),
    "zaya": _row("zaya", num_experts_per_tok=1),
    "lfm2": _row("lfm2", layer_types=["conv", "full_attention"]),
    "lfm2_moe": _row("lfm2_moe", layer_types=["conv", "full_attention"], num_dense_layers=1),
}
"""Every family of the matrix, by a name of its own."""

_COMMON: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 257,
    "eos_token_id": PAD,
    "pad_token_id": PAD,
} | dict.fromkeys(
    # So that training computes what evaluation does.
    (
        "activation_dropout",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_dropout",
        "attn_pdrop",
        "dropout",
        "embd_pdrop",
        "embed_dropout",
        "hidden_dropout",
        "hidden_dropout_prob",
        "input_jitter_noise",
        "layerdrop",
        "resid_dropout",
        "resid_pdrop",
        "router_jitter_noise",
    ),
    0.0,
)


@cache
def _config(name: str) -> Any:
    found = FAMILIES[name]
    known = AutoConfig.for_model(found.kind)
    common = {k: v for k, v in _COMMON.items() if hasattr(known, k)}
    if isinstance(vars(known).get("head_dim"), int):
        common["head_dim"] = 8
    return AutoConfig.for_model(found.kind, **(common | found.settings))


def family(name: str) -> Any:
    """A random model of a family, anew at each call; ids from 256 up are special."""
    torch.manual_seed(6)
    model = AutoModelForCausalLM.from_config(_config(name))
    for key, value in model.named_parameters():
        # Biases and scales begin at zero or one, where no mistake with them would show.
        if value.dim() == 1 and torch.is_floating_point(value):
            with torch.no_grad():
                value.add_(torch.randn_like(value) * (0.05 if "A_log" in key else 0.1))
    return model.eval().requires_grad_(False)


def head_by_hand(name: str, model: Any, states: Array) -> Array:
    """(…, V) float64 logits of states (…, d) by the family's own formula."""
    made = FAMILIES[name]
    module = model.get_submodule(made.head)
    weight = module.weight.detach().double().numpy()
    bias = getattr(module, "bias", None)
    bias = None if bias is None else bias.detach().double().numpy()
    return head(states, weight, bias, made.scale, made.softcap)


@torch.no_grad()
def states_of(name: str, model: Any, **call: Any) -> Tensor:
    """(B, T, d) what the bare model's body gives; nothing may be attached to it."""
    body = model.get_submodule(FAMILIES[name].body)
    assert not body._forward_hooks, "the reference needs a model without hooks"
    seen: list[Tensor] = []
    hook = body.register_forward_hook(lambda m, a, out: seen.append(out[0]))
    try:
        model(**call)
    finally:
        hook.remove()
    return seen[0]
