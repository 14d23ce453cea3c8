"""Wrong input to the functions of the Python interface: an InputError in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import GPT2Config, GPT2LMHeadModel

import surgekit
from surgekit import InputError, MismatchError, NotFiniteError
from surgekit.parsing import first_problem
from surgekit.states.prompts import Prompt, pack_tokens
from surgekit.states.states import States

from .runs import make_world
from .surgeries import surgery
from .tiny import llama, prompts, tokenizer

D = 32


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def states(
    width: int = D,
    *,
    value: float | None = None,
    count: int = 3,
    entropies: bool = True,
    responses: bool = True,
) -> States:
    """States of ``count`` prompts of five tokens; one number in them is ``value``."""
    packed = pack_tokens([[1, 2, 3, 4, 5]] * count, [3 if responses else 5] * count)
    hidden = torch.randn(5 * count, width)
    if value is not None:
        hidden[2, 1] = value
    return States(hidden, packed, torch.rand(5 * count) if entropies else None)


def config(**changes: Any) -> surgekit.SurgeryConfig:
    return surgekit.SurgeryConfig(**({"module": "darts", "hidden_size": D, "rank": 4} | changes))


def fitted(merged: States, expert: States, made: surgekit.SurgeryConfig, **more: Any) -> Any:
    calibration = surgekit.CalibrationConfig.model_validate({"iterations": 2} | more)
    return surgekit.calibrate(merged, expert, made, calibration=calibration)


def read(text: str | bytes) -> Callable[[Path], Any]:
    def call(root: Path) -> Any:
        file = root / "p.jsonl"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return surgekit.read_prompts(file)

    return call


def tokenized(**more: Any) -> Any:
    made = [Prompt(prompt="a", response="b")]
    return surgekit.tokenize_prompts(made, tokenizer(more.pop("template", None)), **more)


def beyond(tokens: list[int]) -> Any:
    return surgekit.capture(llama(), pack_tokens([tokens], [1]))


def broken(value: float, name: str = "model.layers.0.mlp.up_proj.weight") -> Any:
    model = llama()
    with torch.no_grad():
        dict(model.named_parameters())[name][0, 0] = value
    return model


def gpt2() -> Any:
    """A model with a table of 16 positions."""
    sizes: dict[str, Any] = {
        "vocab_size": 300,
        "n_positions": 16,
        "n_embd": D,
        "n_layer": 1,
        "n_head": 2,
    }
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()


NAN, INF = float("nan"), float("inf")
TOKENS = pack_tokens([[1, 2, 3]], [1])

Call = Callable[[Path], Any]
CALLS: dict[str, tuple[Call, type[InputError], tuple[str, ...]]] = {
    # sources
    "load: nothing": (lambda r: surgekit.load_model(r / "x"), InputError, ("found nothing",)),
    "load: a file": (lambda r: surgekit.load_model(__file__), InputError, ("found a file",)),
    "load: no source": (lambda r: surgekit.load_model(3), InputError, ("not a model source",)),  # type: ignore[arg-type]
    "load: two sources": (
        lambda r: surgekit.load_model({"model": "x", "gguf": "y"}),
        InputError,
        ("give one of model, gguf, package",),
    ),
    "load: a key misspelt": (
        lambda r: surgekit.load_model({"modle": "x"}),
        InputError,
        ("unknown key 'modle'; did you mean 'model'?",),
    ),
    "load: a LoRA alone": (
        lambda r: surgekit.load_model({"lora": str(r / "x")}),
        InputError,
        ("needs a base model; pass base=",),
    ),
    "load: dtype": (
        lambda r: surgekit.load_model(r / "math", dtype="bfloat61"),
        InputError,
        ("unknown dtype 'bfloat61'", "did you mean 'bfloat16'?"),
    ),
    "load: device": (
        lambda r: surgekit.load_model(r / "math", device="toaster"),
        InputError,
        ("device 'toaster': expected cpu, cuda, cuda:N or auto",),
    ),
    "tokenizer: nothing": (
        lambda r: surgekit.load_tokenizer(r / "data"),
        InputError,
        ("found no config.json",),
    ),
    # prompts
    "read: nothing": (
        lambda r: surgekit.read_prompts(r / "none.jsonl"),
        InputError,
        ("prompt file not found",),
    ),
    "read: a NUL in the path": (
        lambda r: surgekit.read_prompts("a\0b"),
        InputError,
        ("cannot read", "null byte"),
    ),
    "read: empty": (read(""), InputError, ("found none",)),
    "read: binary": (read(b"\0\1"), InputError, ("found binary data",)),
    "tokenize: no prompts": (
        lambda r: surgekit.tokenize_prompts([], tokenizer()),
        InputError,
        ("expected at least one prompt",),
    ),
    "tokenize: no template": (lambda r: tokenized(), InputError, ("has none", "'plain'")),
    "tokenize: format": (lambda r: tokenized(format="plane"), InputError, ("format 'plane'",)),
    "tokenize: length": (
        lambda r: tokenized(format="plain", max_length=0),
        InputError,
        ("max_length must be at least 1",),
    ),
    "tokenize: half a character": (
        lambda r: surgekit.tokenize_prompts([Prompt(prompt="\ud800")], tokenizer()),
        InputError,
        ("prompt 0", "Unicode"),
    ),
    # capture
    "capture: a token too high": (lambda r: beyond([1, 320]), InputError, ("token id 320",)),
    "capture: a token below 0": (lambda r: beyond([-1, 3]), InputError, ("token id -1",)),
    "capture: batch size": (
        lambda r: surgekit.capture(llama(), TOKENS, batch_size=0),
        InputError,
        ("batch_size must be at least 1",),
    ),
    "capture: NaN": (
        lambda r: surgekit.capture(broken(NAN), TOKENS),
        NotFiniteError,
        ("NaN or infinite hidden states on prompt 0",),
    ),
    "capture: infinity": (
        lambda r: surgekit.capture(broken(INF), TOKENS),
        NotFiniteError,
        ("NaN or infinite hidden states",),
    ),
    "capture: NaN in the head": (
        lambda r: surgekit.capture(broken(NAN, "lm_head.weight"), TOKENS, entropies=True),
        NotFiniteError,
        ("its logits are NaN", "check its weights"),
    ),
    "capture: too long": (
        lambda r: surgekit.capture(gpt2(), pack_tokens([[1] * 30], [3])),
        InputError,
        ("prompt 0 with its 30 tokens", "is max_length beyond the positions it has?"),
    ),
    # states
    "bias: widths": (
        lambda r: surgekit.measure_bias(states(), states(16)),
        MismatchError,
        ("hidden sizes differ (32 and 16)",),
    ),
    "bias: tokens": (
        lambda r: surgekit.measure_bias(states(), states(count=4)),
        MismatchError,
        ("not of the same tokens", "same tokenizer"),
    ),
    "bias: NaN": (
        lambda r: surgekit.measure_bias(states(), states(value=NAN)),
        NotFiniteError,
        ("NaN or infinite",),
    ),
    "bias: infinity": (
        lambda r: surgekit.measure_bias(states(value=INF), states()),
        NotFiniteError,
        ("NaN or infinite",),
    ),
    "bias: no responses": (
        lambda r: surgekit.measure_bias(
            states(responses=False), states(responses=False), text="response"
        ),
        InputError,
        ("no 'response' tokens",),
    ),
    "bias: an adapter of another width": (
        lambda r: surgekit.measure_bias(states(16), states(16), surgery()),
        MismatchError,
        ("width 32, these have 16",),
    ),
    "fit: widths": (
        lambda r: fitted(states(), states(16), config()),
        MismatchError,
        ("hidden sizes differ",),
    ),
    "fit: another module width": (
        lambda r: fitted(states(), states(), config(hidden_size=16)),
        InputError,
        ("16", "32"),
    ),
    "fit: NaN of the merged": (
        lambda r: fitted(states(value=NAN), states(), config()),
        NotFiniteError,
        ("NaN or infinite states of the merged model",),
    ),
    "fit: infinity of the expert": (
        lambda r: fitted(states(), states(value=INF), config(module="linear", rank=None)),
        NotFiniteError,
        ("NaN or infinite states of the expert",),
    ),
    "fit: no entropies": (
        lambda r: fitted(states(), states(entropies=False), config()),
        InputError,
        ("entropies=True",),
    ),
    "fit: no head": (
        lambda r: fitted(states(), states(), config(), loss="kl"),
        InputError,
        ("needs the merged model's head; pass head=",),
    ),
    "fit: one prompt": (
        lambda r: fitted(states(count=1), states(count=1), config(module="linear", rank=None)),
        InputError,
        ("at least two prompts",),
    ),
    "fit: a rate too high": (
        lambda r: fitted(states(), states(), config(), learning_rate=1e30),
        NotFiniteError,
        ("lower the learning rate",),
    ),
    # adapters and merges
    "adapter: none": (
        lambda r: surgekit.load_adapter(r / "data"),
        InputError,
        ("expected an adapter",),
    ),
    "adapter: a place in use": (
        lambda r: surgekit.save_adapter(surgery(), r / "data"),
        InputError,
        ("expected no folder, or an adapter alone",),
    ),
    "attach: nothing": (lambda r: surgekit.attach(llama(), {}), InputError, ("at least one",)),
    "attach: another width": (
        lambda r: surgekit.attach(llama(hidden_size=64), surgery()),
        MismatchError,
        ("of width 32, this model has 64",),
    ),
    "attach: a name": (
        lambda r: surgekit.attach(llama(), {"a/b": surgery()}),
        InputError,
        ("adapter name 'a/b'",),
    ),
    "merge: no mapping": (lambda r: surgekit.merge("- a\n", r / "m"), InputError, ("a mapping",)),
    "merge: no method": (lambda r: surgekit.merge({}, r / "m"), InputError, ("merge_method",)),
    "merge: a key misspelt": (
        lambda r: surgekit.merge({"merge_method": "linear", "modelz": []}, r / "m"),
        InputError,
        ("unknown key 'modelz'; did you mean 'models'?",),
    ),
    "merge: in use": (
        lambda r: surgekit.merge({"merge_method": "linear"}, r / "data"),
        InputError,
        ("expected no folder or an empty one",),
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_call(root: Path, case: str) -> None:
    call, kind, words = CALLS[case]
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.name != "p.jsonl"}
    with pytest.raises(InputError) as caught:
        call(root)
    assert isinstance(caught.value, kind)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert len(message) < 700
    assert "pydantic" not in message
    after = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.name != "p.jsonl"}
    changed = {p for p in after if after[p] != before.get(p)} | (before.keys() - after.keys())
    assert changed <= {root}, changed


SETTINGS: dict[str, tuple[type[Any], dict[str, Any], str]] = {
    "module": (surgekit.SurgeryConfig, {"module": "linar", "hidden_size": 8}, "'linear'?"),
    "width": (surgekit.SurgeryConfig, {"module": "linear", "hidden_size": 0}, "hidden_size: "),
    "no width": (surgekit.SurgeryConfig, {"module": "linear"}, "key 'hidden_size' is missing"),
    "misspelt": (
        surgekit.SurgeryConfig,
        {"module": "linear", "hiden_size": 8},
        "unknown key 'hiden_size'; did you mean 'hidden_size'?",
    ),
    "rank": (surgekit.SurgeryConfig, {"module": "table", "hidden_size": 8, "rank": 2}, "no rank"),
    "loss": (surgekit.CalibrationConfig, {"loss": "ewl"}, "found 'ewl'; did you mean 'ewl1'?"),
    "text": (surgekit.CalibrationConfig, {"text": "prompts"}, "did you mean 'prompt'?"),
    "iterations": (surgekit.CalibrationConfig, {"iterations": 0}, "iterations: expected a number"),
    "rate": (surgekit.CalibrationConfig, {"learning_rate": math.inf}, "expected a finite number"),
    "seed": (surgekit.CalibrationConfig, {"seed": 1 << 40}, "seed: expected a number less than"),
    "ridge": (surgekit.CalibrationConfig, {"ridge": "lo"}, "found 'lo'; did you mean 'loo'?"),
    "batch": (surgekit.CalibrationConfig, {"batch_size": "few"}, "batch_size: expected an integer"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_wrong_setting(case: str) -> None:
    """Python gets pydantic's own error, which all of surgekit's messages are made from."""
    model, given, said = SETTINGS[case]
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    message = str(first_problem(caught.value, given, model))
    assert said in message
    assert "Input should" not in message


def test_prompts_make_a_round_trip(root: Path) -> None:
    """So that none of the rows above fails for the world's sake."""
    tokens = surgekit.tokenize_prompts([Prompt.model_validate(p) for p in prompts(3)], tokenizer())
    assert len(surgekit.capture(llama(), tokens, entropies=True).hidden) == len(tokens.ids)
    surgekit.measure_bias(states(), states())
    fitted(states(), states(), config())
