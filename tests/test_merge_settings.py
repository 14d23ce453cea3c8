"""What mergekit passes over, or finds half-way, is found before: mergekit runs beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surgekit.errors import InputError
from surgekit.findings import Finding
from surgekit.merging import merge, read_merge_config
from surgekit.merging.examining import examine_merge
from surgekit.models.checkpoint import read_checkpoint

from .zoo import PAIR, expect_told, make_checkpoint, make_zoo, mergekit_alone, tensors

Config = dict[str, Any]
NAMES = ("base", "math", "code")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base and two experts of one vocabulary, in float32."""
    root = tmp_path_factory.mktemp("zoo")
    return {name: make_checkpoint(root / name, i) for i, name in enumerate(NAMES)}


def examined(config: Config, zoo: dict[str, Path]) -> list[Finding]:
    models = {name: read_checkpoint(folder, name) for name, folder in zoo.items()}
    return examine_merge(read_merge_config(config), Path.cwd(), models)[0]


def two(
    method: str = "task_arithmetic",
    *,
    own: Config | None = None,
    entry: Config | None = None,
    **top: Any,
) -> Config:
    """math and code at weight 1; ``own`` are math's parameters, ``entry`` keys beside them."""
    mine = {"weight": 1.0} | (own or {})
    based = {} if method == "linear" else {"base_model": "base"}
    return {
        "merge_method": method,
        **based,
        "models": [
            {"model": "math", "parameters": mine} | (entry or {}),
            {"model": "code", "parameters": {"weight": 1.0}},
        ],
        "dtype": "float32",
    } | top


def sliced(*ranges: tuple[int, int], method: str = "linear") -> Config:
    weight = {"parameters": {"weight": 1}}
    return {
        "merge_method": method,
        "dtype": "float32",
        "slices": [
            {"sources": [{"model": n, "layer_range": list(r), **weight} for n in ("math", "code")]}
            for r in ranges
        ],
    }


# (configuration, level, what is said, what mergekit does by itself)
FOUND: dict[str, tuple[Config, str, str, str]] = {
    "misspelt at the top": (
        two(parameters={"lamda": 0.3}),
        "error",
        "parameters.lamda: task_arithmetic has no such parameter; did you mean 'lambda'?",
        "silent",
    ),
    "misspelt per model": (
        two(own={"wieght": 0.3}),
        "error",
        "models[0].parameters.wieght: task_arithmetic has no such parameter; did you mean 'weight'",
        "silent",
    ),
    "of another method": (
        two(parameters={"t": 0.5}),
        "warning",
        "parameters.t: task_arithmetic has no such parameter, so it changes nothing (it has",
        "silent",
    ),
    "of no method": (
        two(parameters={"flavour": 1}),
        "warning",
        "parameters.flavour: task_arithmetic has no such parameter (it has",
        "silent",
    ),
    "lambda per model": (
        two(own={"lambda": 0.3}),
        "error",
        "models[0].parameters.lambda: task_arithmetic reads it for all models; put it under",
        "silent",
    ),
    "normalize per model, as it is anyway": (
        two("ties", own={"normalize": True}),
        "note",
        "models[0].parameters.normalize: ties reads it for all models",
        "silent",
    ),
    "normalize per model, otherwise": (
        two("ties", own={"normalize": False}),
        "error",
        "models[0].parameters.normalize: ties reads it for all models",
        "silent",
    ),
    "lambda outside of parameters": (
        two() | {"lambda": 0.3},
        "error",
        "lambda: mergekit does not read it here; put it under parameters",
        "silent",
    ),
    "density outside of parameters": (
        two("ties", density=0.3),
        "error",
        "density: mergekit does not read it here; put it under parameters",
        "silent",
    ),
    "weight beside parameters": (
        two(entry={"weight": 0.3}),
        "error",
        "models[0].weight: mergekit does not read it here; put it under models[0].parameters",
        "silent",
    ),
    "a key of the user's own": (
        two(author="me"),
        "warning",
        "author: no key of a mergekit configuration; it is ignored",
        "silent",
    ),
    "density where nothing is thinned out": (
        two(own={"density": 0.5}),
        "warning",
        "models[0].parameters.density: task_arithmetic keeps every entry, so it changes nothing",
        "silent",
    ),
    "density in percent": (
        two("ties", own={"density": 50}),
        "error",
        "models[0].parameters.density: expected a share from 0 to 1, found 50; did you mean 0.5?",
        "silent",
    ),
    "density below 0": (
        two("ties", parameters={"density": -0.5}),
        "error",
        "parameters.density: expected a share from 0 to 1, found -0.5",
        "silent",
    ),
    "density out of range in a gradient": (
        two("ties", parameters={"density": [0.5, 5]}),
        "error",
        "parameters.density: expected a share from 0 to 1, found 5; did you mean 0.05?",
        "silent",
    ),
    "density out of range under a filter": (
        two("ties", parameters={"density": [{"filter": "mlp", "value": 60}, {"value": 1}]}),
        "error",
        "parameters.density[0]: expected a share from 0 to 1, found 60; did you mean 0.6?",
        "silent",
    ),
    "density as text": (
        two("ties", parameters={"density": "50"}),
        "error",
        "parameters.density: expected a share from 0 to 1, found 50",
        "silent",
    ),
    "density 0": (
        two("ties", own={"density": 0}),
        "warning",
        "math: density 0 keeps nothing of it",
        "silent",
    ),
    "weight 0": (two(own={"weight": 0}), "warning", "math: its weight is 0", "silent"),
    "a negative weight": (two(own={"weight": -0.5}), "note", "math: its weight is -0.5", "silent"),
    "weight in percent": (two(own={"weight": 60}), "warning", "math: enters 60-fold", "silent"),
    "weight yes": (
        two(own={"weight": True}),
        "error",
        "models[0].parameters.weight: expected a number, found true",
        "silent",
    ),
    "lambda 0": (
        two(parameters={"lambda": 0}),
        "warning",
        "all weights are 0 (lambda 0?), so the merge is the base itself",
        "silent",
    ),
    "lambda NaN": (
        two(parameters={"lambda": float("nan")}),
        "error",
        "parameters.lambda: expected a finite number, found nan",
        "silent",
    ),
    "weight infinite": (
        two(own={"weight": float("inf")}),
        "error",
        "models[0].parameters.weight: expected a finite number, found inf",
        "silent",
    ),
    "an empty gradient": (
        two(parameters={"lambda": []}),
        "error",
        "parameters.lambda: an empty list",
        "silent",
    ),
    "a filter for nothing": (
        two(own={"weight": [{"filter": "self_atn", "value": 0.1}, {"value": 1}]}),
        "error",
        "models[0].parameters.weight[0].filter: no weight has 'self_atn' in its name, so the value "
        "is used nowhere; did you mean 'self_attn'?",
        "silent",
    ),
    "a filter for other models": (
        two(own={"weight": [{"filter": "block_sparse_moe", "value": 0.1}, {"value": 1}]}),
        "warning",
        "models[0].parameters.weight[0].filter: no weight has 'block_sparse_moe' in its name",
        "silent",
    ),
    "parameters of the base": (
        two(models=[{"model": n, "parameters": {"weight": 0.5}} for n in NAMES]),
        "warning",
        "models[0].parameters: of the base, and mergekit does not read them",
        "silent",
    ),
    "one weight for all, divided out": (
        {**two("ties"), "models": PAIR, "parameters": {"weight": 0.3}},
        "warning",
        "parameters.weight: the same for all and divided by the sum, so it does nothing (normalize "
        "is true for ties by default); the models enter as math 0.5, code 0.5",
        "silent",
    ),
    "weights that ties divides": (
        two("ties", own={"weight": 0.5}),
        "note",
        "ties divides the weights by their sum, 1.5 (normalize is true by default); the models "
        "enter as math 0.3333, code 0.6667",
        "silent",
    ),
    "a sum that is no average": (
        {**two("linear", own={"weight": 0.2}), "parameters": {"normalize": False}},
        "warning",
        "the weights add up to 1.2 and normalize is false, so the merged weights are 1.2 times",
        "silent",
    ),
    "weights that cancel out": (
        two("linear", own={"weight": -1.0}),
        "error",
        "add up to 0, and linear divides by their sum",
        "silent",
    ),
    "a dtype of another name": (
        two(dtype="bf16"),
        "error",
        "dtype: expected one of float32, bfloat16, float16, float64, found 'bf16'; did you mean "
        "'bfloat16'?",
        "late",
    ),
    "an out_dtype of another name": (
        two(out_dtype="float23"),
        "error",
        "out_dtype: expected one of float32, bfloat16, float16, float64, found 'float23'; did you",
        "late",
    ),
    "a dtype that no merge is computed in": (
        two(dtype="float8_e4m3fn"),
        "error",
        "dtype: expected one of float32, bfloat16, float16, float64, found 'float8_e4m3fn'",
        "late",
    ),
    "weights as whole numbers": (
        two(out_dtype="int64"),
        "error",
        "out_dtype: expected one of float32",
        "silent",
    ),
    "computed in half precision": (
        two(dtype="bfloat16"),
        "warning",
        "dtype: bfloat16 computes the merge in that precision, which moves many weights by a "
        "rounding step; write dtype: float32 and out_dtype: bfloat16",
        "silent",
    ),
    "slices beyond the last layer": (
        sliced((0, 1), (2, 3)),
        "error",
        "slices[1].sources[0].layer_range: [2, 3] of a model of 2 layers",
        "late",
    ),
    "slices from the second layer on": (
        sliced((1, 2)),
        "warning",
        "slices begin with layer 1; the merged model has another depth than its experts",
        "silent",
    ),
    "slices that take a layer twice": (
        sliced((0, 2), (1, 2)),
        "warning",
        "slices take layers twice: one ends before layer 2, the next begins with 1",
        "silent",
    ),
    "slices the wrong way round": (
        sliced((2, 1)),
        "error",
        "slices[0].sources[0].layer_range: expected [first, last + 1] of at least one layer",
        "silent",
    ),
    "slices of nothing": (
        sliced((0, 0)),
        "error",
        "expected [first, last + 1] of at least one layer, found [0, 0]",
        "silent",
    ),
    "slices from before the first layer": (
        sliced((-1, 1)),
        "error",
        "expected [first, last + 1] of at least one layer, found [-1, 1]",
        "late",
    ),
    "slices short of the last layer": (
        sliced((0, 1)),
        "warning",
        "slices end before layer 1 of the 2 of math; the merged model has another depth",
        "silent",
    ),
    "no such template": (
        two(chat_template="chatlm"),
        "error",
        "chat_template: expected 'auto', a jinja text, or one of",
        "silent",
    ),
    "a template that does not parse": (
        two(chat_template="{% for m in messages %}{{ m }} and no end"),
        "error",
        "chat_template: does not parse as jinja",
        "silent",
    ),
    "a tokenizer of no model": (
        two(tokenizer_source="unoin"),
        "error",
        "'unoin' is no local folder",
        "late",
    ),
    "a tokenizer as a word": (
        two(tokenizer="union"),
        "error",
        "task_arithmetic merge: tokenizer: ",
        "early",
    ),
    "random masks": (
        two("dare_linear", parameters={"density": 0.5}),
        "note",
        "dare_linear draws random masks; the seed is part of the result",
        "silent",
    ),
}


@pytest.mark.parametrize(("config", "level", "said", "alone"), FOUND.values(), ids=FOUND.keys())
def test_found_before_any_work(
    config: Config, level: str, said: str, alone: str, zoo: dict[str, Path], tmp_path: Path
) -> None:
    expect_told(examined(config, zoo), level, said)
    assert mergekit_alone(config, zoo, tmp_path / "alone") == alone


# Configurations that say what they do: nothing is to be said of them.
SOUND: dict[str, Config] = {
    "task arithmetic": two(parameters={"lambda": 0.5}),
    "linear": {"merge_method": "linear", "models": PAIR, "parameters": {"weight": 1}},
    "linear that sums to 1": two("linear", own={"weight": 0.4}, parameters={"normalize": True}),
    "out_dtype": two(out_dtype="bfloat16"),
    "a gradient that begins at 0": two(own={"weight": [0, 0.5, 1]}),
    "weights by filter": two(own={"weight": [{"filter": "mlp", "value": 0.4}, {"value": 0.2}]}),
    "numbers as text": two(parameters={"lambda": "5e-1"}),
    "the base among the models": two(models=[{"model": "base"}, *two()["models"]]),
    "density for ties": two("ties", parameters={"density": 0.5, "normalize": True}),
    "slices of all layers": sliced((0, 1), (1, 2)),
    "layers twice by passthrough": {
        "merge_method": "passthrough",
        "slices": [{"sources": [{"model": "math", "layer_range": [0, 2]}]}] * 2,
    },
    "a template by name": two(chat_template="chatml"),
    "a template as text": two(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}"),
    "slerp": {
        "merge_method": "slerp",
        "base_model": "math",
        "models": PAIR,
        "parameters": {"t": [{"filter": "mlp", "value": [0, 0.5]}, {"value": 0.3}]},
    },
}


@pytest.mark.parametrize("config", SOUND.values(), ids=SOUND.keys())
def test_nothing_is_said_of_what_is_meant_so(config: Config, zoo: dict[str, Path]) -> None:
    found = [f for f in examined(config, zoo) if "no base_model is given" not in f.message]
    assert found == []


def test_the_donor_is_named_where_no_base_settles_it(zoo: dict[str, Path]) -> None:
    (note,) = examined(SOUND["linear"], zoo)
    assert note.level == "note"
    assert "those of the first model, math" in note.message
    assert examined(SOUND["linear"] | {"base_model": "math"}, zoo) == []


def test_every_error_stops_a_merge_before_it_writes(zoo: dict[str, Path], tmp_path: Path) -> None:
    for name, (config, level, said, _) in FOUND.items():
        if level == "error":
            with pytest.raises(InputError) as caught:
                merge(config, tmp_path / "out", models=zoo)
            assert said in str(caught.value), name
            assert not list(tmp_path.glob("*out*")), name


def test_half_precision_moves_many_weights(zoo: dict[str, Path], tmp_path: Path) -> None:
    """The figure behind the advice: computing in bfloat16 against rounding once at the end."""
    models = {
        name: make_checkpoint(tmp_path / name, i, dtype=torch.bfloat16)
        for i, name in enumerate(NAMES)
    }
    config = two(parameters={"lambda": 0.4}) | {"dtype": "bfloat16"}
    merge(config, tmp_path / "half", models=models)
    merge(config | {"dtype": "float32", "out_dtype": "bfloat16"}, tmp_path / "full", models=models)
    half, full = tensors(tmp_path / "half"), tensors(tmp_path / "full")
    moved = np.mean(np.concatenate([(half[n] != full[n]).ravel() for n in full]))
    assert 0.1 < moved < 0.7


@pytest.mark.parametrize(
    ("dtypes", "config", "said"),
    [
        (("bfloat16",) * 3, {}, "computed in the models' own (BF16)"),
        (("bfloat16", "float16", "float32"), {}, "differ (base BF16, math F16, code F32)"),
        (("bfloat16", "float16", "float16"), {}, "so what is written is float32"),
        (("bfloat16", "float32", "float32"), {}, "differ (base BF16, math F32, code F32)"),
        (("float32", "bfloat16", "bfloat16"), {}, "what is written is float32, larger than math"),
        (("float32", "bfloat16", "float32"), {"out_dtype": "bfloat16"}, None),
        (("bfloat16", "float16", "float16"), {"out_dtype": "bfloat16"}, None),
        (("bfloat16",) * 3, {"dtype": "float32", "out_dtype": "bfloat16"}, None),
        (("bfloat16",) * 3, {"out_dtype": "bfloat16"}, "computed in the models' own (BF16)"),
    ],
)
def test_dtypes_of_the_models(
    dtypes: tuple[str, ...], config: Config, said: str | None, tmp_path: Path
) -> None:
    models = {
        name: make_checkpoint(tmp_path / name, i, dtype=getattr(torch, dtypes[i]))
        for i, name in enumerate(NAMES)
    }
    given = {k: v for k, v in two().items() if k != "dtype"} | config
    found = [f for f in examined(given, models) if "precision" in f.message or "dtype" in f.message]
    assert [f.level for f in found] == ([] if said is None else ["warning"])
    assert said is None or said in found[0].message
    if said is not None and "written" in said:
        assert mergekit_alone(given, models, tmp_path / "alone") == "silent"
        written = read_checkpoint(tmp_path / "alone", "alone").tensors.values()
        assert {info.dtype for info in written} == {"F32"}


def test_density_changes_no_task_arithmetic(zoo: dict[str, Path], tmp_path: Path) -> None:
    for name, own in (("with", {"density": 0.1}), ("without", {})):
        assert mergekit_alone(two(own=own), zoo, tmp_path / name) == "silent"
    one, other = tensors(tmp_path / "with"), tensors(tmp_path / "without")
    assert all(np.array_equal(one[n], other[n]) for n in other)


def test_only_what_is_near_is_suggested(zoo: dict[str, Path]) -> None:
    (error,) = [f for f in examined(two(dtype="float8_e4m3fn"), zoo) if f.level == "error"]
    assert "did you mean" not in error.message
    for written, meant in (("TIES", "ties"), ("Task_Arithmetic", "task_arithmetic")):
        (error,) = examined(two(written), zoo)
        assert f"unknown merge_method {written!r}; did you mean {meant!r}?" in error.message


def test_models_given_twice_in_a_file(zoo: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "merge.yml"
    file.write_text("merge_method: linear\nmodels: [{model: math}]\nmodels: [{model: code}]\n")
    with pytest.raises(InputError, match="line 3: key 'models' is given twice"):
        merge(file, tmp_path / "out", models=zoo)


def test_the_zoo_s_own_vocabularies_are_warned_of(tmp_path: Path) -> None:
    """Three words of 128 differ there: that is a warning; nine in ten would be an error."""
    made = make_zoo(tmp_path)
    found = examined(two(), {n: made[n] for n in NAMES})
    (warning,) = [f for f in found if "math: 3 of 128 ids" in f.message]
    assert warning.level == "warning"
    assert "the first being 125: 'plus' instead of 'w122'" in warning.message
    aligned = examined(two(tokenizer={"source": "base"}), {n: made[n] for n in NAMES})
    assert [f.level for f in aligned if "ids" in f.message] == ["note", "note"]
