"""What models are made of: body, norm and head are found and proven; fingerprints never move."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from surgekit.errors import InputError, NotFiniteError
from surgekit.models import fingerprint as fingerprints
from surgekit.models.anatomy import Head, find_anatomy, find_body, find_head
from surgekit.models.fingerprint import digest_json, fingerprint
from surgekit.models.loading import load_model

from .families import FAMILIES, family
from .oracle import head as head_by_hand
from .tiny import checkpoint, llama

# -- anatomy ---------------------------------------------------------------------------------------


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_parts_of_a_llama(tied: bool, dtype: torch.dtype) -> None:
    model = llama(1, dtype=dtype, tie_word_embeddings=tied)
    anatomy, head = find_anatomy(model)
    assert (anatomy.body, anatomy.norm, anatomy.head) == ("model", "model.norm", "lm_head")
    assert (anatomy.hidden_size, head.vocabulary, head.bias) == (32, 320, None)
    assert torch.equal(head.weight, model.lm_head.weight)
    assert find_body(model) == ("model", model.model)
    by_name, _ = find_anatomy(model, body="model", head="lm_head")
    assert by_name == anatomy
    assert hooks(model) == 0


@pytest.mark.parametrize(
    ("name", "body", "norm"),
    [
        ("gpt2", "transformer", "transformer.ln_f"),
        ("opt", "model.decoder", "model.decoder.final_layer_norm"),
        ("bloom", "transformer", "transformer.ln_f"),
        ("gemma2", "model", "model.norm"),
        ("cohere", "model", "model.norm"),
        ("granite", "model", "model.norm"),
    ],
)
def test_the_parts_of_other_families(name: str, body: str, norm: str) -> None:
    assert name in FAMILIES
    model = family(name)
    anatomy, head = find_anatomy(model)
    assert (anatomy.body, anatomy.norm, anatomy.head) == (body, norm, "lm_head")
    seen: list[Tensor] = []
    module = model.get_submodule(body)
    module.register_forward_hook(lambda m, a, out: seen.append(out.last_hidden_state))
    ids = torch.arange(9)[None]
    own = model(input_ids=ids).logits
    assert (head.logits(seen[0]) - own).abs().max() < 1e-5
    # Without its own scale and cap the head would be another one.
    plain = Head(head.weight, head.bias).logits(seen[0])
    assert ((plain - own).abs().max() > 0.1) == (name in ("gemma2", "cohere", "granite"))


@pytest.mark.parametrize(
    "names",
    [
        {"body": "transformer"},
        {"head": "score"},
        {"body": "model.layers.7"},
    ],
)
def test_a_name_that_does_not_exist_lists_those_that_do(names: dict[str, str]) -> None:
    model = llama(1)
    with pytest.raises(InputError, match="children: model, lm_head") as caught:
        find_anatomy(model, **names)
    assert next(iter(names.values())) in str(caught.value)


@pytest.mark.parametrize(
    "names",
    [
        {"body": "model.layers.1"},
        {"body": "model.embed_tokens"},
        {"body": "model.layers"},
        {"body": "model.layers.0.mlp.up_proj"},
        {"body": "model.layers.0.self_attn"},
        {"head": "model.embed_tokens"},
        {"head": "model.norm"},
        {"head": "model.layers.0.self_attn.q_proj"},
        {"head": "model.layers.0.mlp.down_proj"},
    ],
)
def test_a_part_that_is_the_wrong_one_is_refused(names: dict[str, str]) -> None:
    model = llama(1)
    with pytest.raises(InputError, match=r"body=|head="):
        find_anatomy(model, **names)
    assert hooks(model) == 0


def test_a_head_that_does_something_unknown_is_refused() -> None:
    class Doubling(LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 2
            return output

    sound = llama(1)
    model = Doubling(sound.config)
    model.load_state_dict(sound.state_dict())
    with pytest.raises(InputError, match="not the model's own logits"):
        find_anatomy(model)
    assert hooks(model) == 0


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 320}
_ENCODER = _SMALL | {"intermediate_size": 48, "is_decoder": True}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "xlnet": (
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "vocab_size": 320},
        "tokens that come later",
    ),
    "xlm": ({"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": 320}, "tokens that come later"),
    "cpmant": (_SMALL | {"dim_head": 8, "dim_ff": 48}, "tokens that come later"),
    "bert": (_ENCODER, "not the model's own logits"),
    "roberta": (_ENCODER, "not the model's own logits"),
    "electra": (_ENCODER | {"embedding_size": 32}, "not the model's own logits"),
    "rembert": (
        _ENCODER | {"input_embedding_size": 32, "output_embedding_size": 40},
        "gives 32 numbers a token",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_cannot_work_is_refused_by_name(name: str) -> None:
    """With the small weights that transformers draws, which hide what a model looks ahead to."""
    settings, why = REFUSED[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings)).eval()
    with pytest.raises(InputError, match=why) as caught:
        find_anatomy(model)
    assert type(model).__name__ in str(caught.value)


def test_a_model_that_computes_nan_is_refused() -> None:
    model = llama(1)
    model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(NotFiniteError, match="NaN"):
        find_anatomy(model)


def test_a_quantised_head_is_refused() -> None:
    model = llama(1)
    whole = torch.ones(320, 32, dtype=torch.int8)
    model.lm_head.weight = nn.Parameter(whole, requires_grad=False)
    with pytest.raises(InputError, match="quantised"):
        find_head(model)


class Plain(nn.Module):
    """A model of no family: parts are found by what they hold."""

    def __init__(self, shells: int = 0, shared: bool = False) -> None:
        super().__init__()
        core = nn.Module()
        core.words, core.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        for _ in range(shells):
            shell = nn.Module()
            shell.inner = core
            core = shell
        self.extra, self.core, self.out = nn.Linear(1, 1), core, nn.Linear(4, 5)
        if shared:
            self.core.out = self.out

    def get_input_embeddings(self) -> nn.Module:
        return next(m for m in self.modules() if isinstance(m, nn.Embedding))

    def get_output_embeddings(self) -> nn.Module:
        return self.out


def test_the_body_is_found_by_what_it_holds() -> None:
    assert find_body(Plain())[0] == "core"
    assert find_body(Plain(shells=2))[0] == "core.inner.inner"
    for broken in (Plain(shared=True), nn.Linear(2, 2)):
        with pytest.raises(InputError, match="body="):
            find_body(broken)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, None), (0.5, None), (1.0, 2.0), (3.0, 1.5)])
def test_logits_of_a_head(bias: bool, scale: float, softcap: float | None) -> None:
    rng = np.random.default_rng(0)
    weight, hidden = rng.normal(size=(7, 4)), rng.normal(size=(2, 3, 4))
    offset = rng.normal(size=7) if bias else None
    expected = head_by_hand(hidden, weight, offset, scale, softcap)
    head = Head(
        torch.from_numpy(weight),
        None if offset is None else torch.from_numpy(offset),
        scale,
        softcap,
    )
    found = head.logits(torch.from_numpy(hidden))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    part = head.logits(torch.from_numpy(hidden), 2, 5)
    np.testing.assert_allclose(part.numpy(), expected[..., 2:5], rtol=1e-12)
    single = head.prepared().logits(torch.from_numpy(hidden).float())
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-5, atol=1e-5)


# -- fingerprints ----------------------------------------------------------------------------------


class Fixed(nn.Module):
    """Weights that are bfloat16 values: 0, 1/8, 2/8, …"""

    def __init__(self, order: str = "abc", **changed: Tensor) -> None:
        super().__init__()
        values = {
            "a": torch.arange(6).reshape(2, 3) / 8,
            "b": torch.arange(4) / 8 - 1,
            "c": torch.tensor(2.5),
        } | changed
        for name in order:
            self.register_parameter(name, nn.Parameter(values[name]))
        self.register_buffer("noise", torch.randn(3))


GOLDEN = "sf1-64b8f183929799d588df5ec11ed0f95389fbac9ffde7b9998221222d0cf08186"


def test_the_fingerprint_is_frozen() -> None:
    by_hand = hashlib.sha256()
    values = {
        "a:(2, 3)": [0, 0.125, 0.25, 0.375, 0.5, 0.625],
        "b:(4,)": [-1, -0.875, -0.75, -0.625],
        "c:()": [2.5],
    }
    for line, numbers in values.items():
        single = np.array(numbers, dtype="<f4").view("<u4")
        by_hand.update(f"{line}\n".encode())
        by_hand.update((single >> 16).astype("<u2").tobytes())  # bfloat16: the upper half
    assert fingerprint(Fixed()) == f"sf1-{by_hand.hexdigest()}" == GOLDEN


def test_the_fingerprint_depends_on_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fingerprint(Fixed("cab")) == GOLDEN  # nor on the buffer, which is drawn anew
    for kind in (torch.float64, torch.bfloat16):
        assert fingerprint(Fixed().to(kind)) == GOLDEN
    assert fingerprint(Fixed().requires_grad_(False).eval()) == GOLDEN
    compiled: Any = torch.compile(Fixed(), backend="eager")
    assert fingerprint(compiled) == GOLDEN
    strided = Fixed()
    strided.a = nn.Parameter(strided.a.detach().T.contiguous().T)
    assert fingerprint(strided) == GOLDEN
    monkeypatch.setattr(fingerprints, "_CHUNK_ELEMENTS", 4)
    assert fingerprint(Fixed()) == GOLDEN


@pytest.mark.parametrize(
    "other",
    [
        Fixed(a=(torch.arange(6) / 8).reshape(3, 2)),
        Fixed(b=torch.tensor([-1, -0.875, -0.75, -0.621])),
        Fixed(c=torch.tensor(-2.5)),
        Fixed(c=torch.tensor([2.5])),
        Fixed("ab"),
    ],
)
def test_any_change_of_a_weight_changes_it(other: nn.Module) -> None:
    assert fingerprint(other) != GOLDEN
    assert fingerprint(other).startswith("sf1-")
    assert len(fingerprint(other)) == len("sf1-") + 64


def test_a_model_keeps_its_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    model = llama(3, dtype=torch.bfloat16)
    mark = fingerprint(model)
    folder = checkpoint(tmp_path / "m", model)
    assert fingerprint(load_model(folder)) == mark
    assert fingerprint(load_model(folder, dtype="float32")) == mark
    single = llama(3)
    assert fingerprint(single) == mark  # rounded to bfloat16 by the fingerprint itself
    single.model.norm.weight[5] += 0.01
    assert fingerprint(single) != mark


def test_tied_weights_count_once() -> None:
    tied, apart = llama(3, tie_word_embeddings=True), llama(3)
    del apart.lm_head
    apart.model.embed_tokens.weight.copy_(tied.model.embed_tokens.weight)
    apart.model.layers.load_state_dict(tied.model.layers.state_dict())
    assert fingerprint(tied) == fingerprint(apart)


def test_settings_have_a_digest_of_their_content() -> None:
    settings = {"b": [1, 2.5, None], "a": "ä"}
    text = '{"a":"ä","b":[1,2.5,null]}'
    assert digest_json(settings) == hashlib.sha256(text.encode()).hexdigest()
    assert digest_json({"a": "ä", "b": [1, 2.5, None]}) == digest_json(settings)
    assert digest_json({"a": "ä", "b": [2.5, 1, None]}) != digest_json(settings)
