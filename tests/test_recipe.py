"""The recipe: what is read, where paths lead, the ids of methods, the resolved recipe."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from surgekit.models.source import ModelSource
from surgekit.recipe import Recipe, load_recipe

from .recipes import FULL, SMALL, added, edited, parsed

# --- what is read -------------------------------------------------------------------------------


def test_every_key_is_read() -> None:
    recipe = parsed(FULL)
    assert recipe.base == ModelSource(model="org/base", revision="v1")
    math, code = recipe.domains["math"], recipe.domains["code-2"]
    assert math.expert == ModelSource(lora="/r/experts/math")
    assert (math.format, math.tasks) == ("plain", ["gsm8k", "demo"])
    assert (math.calibration.file, math.calibration.items) == ("/r/data/cal.jsonl", 50)
    assert math.validation is not None
    assert (math.validation.file, math.validation.items) == ("/r/data/val.jsonl", None)
    assert (math.test.file, math.test.items) == ("/abs/test.jsonl", 7)
    assert code.expert == ModelSource(gguf="/r/code.gguf")
    assert code.format == "User: {{ prompt }}"
    assert code.calibration.file == "/r/data/c.jsonl"
    assert code.validation is None
    assert recipe.merge == {"merge_method": "task_arithmetic", "parameters": {"lambda": 0.5}}
    assert recipe.merged_folder is None
    assert recipe.seeds == [3, 1]
    assert recipe.plain_text is not None
    assert recipe.plain_text.file == "/r/data/plain.jsonl"
    assert (recipe.max_length, recipe.batch_size, recipe.position_bin) == (300, 2, 16)
    assert (recipe.dtype, recipe.device) == ("float32", "auto")
    assert (recipe.body, recipe.head) == ("model", "lm_head")
    methods = {m.id: m for m in recipe.methods()}
    assert list(methods) == [
        "standard-l1@prompt+rank=4",
        "standard-l1@prompt+rank=8",
        "standard-l1@response+rank=4",
        "standard-l1@response+rank=8",
        "darts-ewl1@both",
        "best",
        "second",
    ]
    darts = methods["darts-ewl1@both"]
    fit = darts.calibration
    assert (fit.iterations, fit.learning_rate, fit.batch_size) == (10, 0.01, 4)
    assert darts.config(32).max_positions == 64
    assert methods["standard-l1@response+rank=8"].config(32).rank == 8
    best = methods["best"].calibration
    assert (best.loss, best.ridge, best.weights) == (None, "gcv", "entropy")
    assert methods["second"].calibration.entropy_mean == "sequence"


def test_defaults() -> None:
    recipe = parsed(SMALL)
    assert recipe.seeds == [0]
    assert (recipe.max_length, recipe.batch_size, recipe.position_bin) == (512, 8, 32)
    assert (recipe.dtype, recipe.device) == ("bfloat16", "cpu")
    assert (recipe.plain_text, recipe.body, recipe.head) == (None, None, None)
    domain = recipe.domains["math"]
    assert (domain.format, domain.tasks, domain.validation) == ("chat", [], None)
    assert domain.calibration.items is None
    ids = [m.id for m in recipe.methods()]
    assert ids == ["mean-shift@both", "standard-l1@both", "darts-ewl1@both", "linear@both"]
    fit = recipe.methods()[2].calibration
    assert (fit.iterations, fit.learning_rate, fit.batch_size) == (500, 1e-3, 16)
    assert recipe.methods()[2].config(64).rank == 16


@pytest.mark.parametrize(
    ("short", "name"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")]
)
def test_short_names_of_dtypes_are_those_that_options_take(short: str, name: str) -> None:
    assert parsed(f"{SMALL}dtype: {short}\n").dtype == name


def test_a_file_is_read_with_its_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert load_recipe(file).domains["math"].test.file == str(tmp_path / "test.jsonl")


# --- paths --------------------------------------------------------------------------------------


def test_paths_are_taken_from_the_recipe_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "math").mkdir(parents=True)
    file = tmp_path / "here" / "recipe.yaml"
    file.write_text(SMALL.replace("./math", "math").replace("cal.jsonl", "~/cal.jsonl"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    recipe = load_recipe("here/recipe.yaml")
    assert recipe.base.model == str(tmp_path / "here" / "base")
    assert recipe.domains["math"].expert.model == str(tmp_path / "here" / "math")
    assert recipe.domains["math"].test.file == str(tmp_path / "here" / "test.jsonl")
    assert recipe.domains["math"].calibration.file == "/home/me/cal.jsonl"


def test_hub_ids_are_left_alone() -> None:
    recipe = parsed(SMALL.replace("./base", "org/base").replace("./math", "solo"))
    assert recipe.base.model == "org/base"
    assert recipe.domains["math"].expert.model == "solo"


@pytest.mark.parametrize("merge", ["merge.yml", "{folder: merged}", "{folder: ~/merged}"])
def test_a_merge_by_path_becomes_absolute(merge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    recipe = parsed(SMALL.replace("{merge_method: linear}", merge))
    if merge == "merge.yml":
        assert recipe.merge == "/r/merge.yml"
        assert recipe.merged_folder is None
    else:
        expected = "/home/me/merged" if "~" in merge else "/r/merged"
        assert recipe.merge == {"folder": expected}
        assert recipe.merged_folder == expected


def test_models_of_an_inline_merge_are_taken_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "third").mkdir()
    (tmp_path / "math").mkdir()  # the domain of that name comes first
    text = SMALL.replace(
        "{merge_method: linear}",
        "{merge_method: ties, base_model: base, tokenizer_source: union, models: "
        "[{model: math}, {model: ./other}, {model: third}, {model: org/hub}, {model: /abs}]}",
    )
    merge = parsed(text, str(tmp_path)).merge
    assert isinstance(merge, dict)
    assert (merge["base_model"], merge["tokenizer_source"]) == ("base", "union")
    expected = ["math", f"{tmp_path}/other", f"{tmp_path}/third", "org/hub", "/abs"]
    assert [m["model"] for m in merge["models"]] == expected


# --- methods and the resolved recipe ------------------------------------------------------------


def test_a_list_means_each_of_its_values() -> None:
    text = "surgery: [{module: [standard, darts], loss: [l1, kl], text: [prompt, both]}]"
    ids = [m.id for m in parsed(added(text)).methods()]
    expected = itertools.product(("standard", "darts"), ("l1", "kl"), ("prompt", "both"))
    assert ids == [f"{m}-{loss}@{text}" for m, loss, text in expected]


def test_varied_settings_enter_the_id_and_single_ones_do_not() -> None:
    text = "surgery: [{module: linear, ridge: [loo, 0.1], rank: [null, 4], weights: entropy}]"
    ids = [m.id for m in parsed(added(text)).methods()]
    assert ids == [f"linear@both+rank={r}+ridge={x}" for r in (None, 4) for x in ("loo", 0.1)]


def test_mean_shift_is_closed_unless_a_loss_is_named() -> None:
    text = "surgery: [{module: mean-shift}, {module: mean-shift, loss: l1}, {module: table}]"
    methods = parsed(added(text)).methods()
    assert [m.id for m in methods] == ["mean-shift@both", "mean-shift-l1@both", "table-l1@both"]
    assert [m.calibration.loss for m in methods] == [None, "l1", "l1"]


def resolved(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


@pytest.mark.parametrize(
    "text",
    [SMALL, FULL, edited("{merge_method: linear}", "{folder: x}"), edited("./base", "org/hub")],
)
def test_a_resolved_recipe_is_a_recipe(text: str) -> None:
    recipe = parsed(text)
    again = parsed(resolved(recipe), "/elsewhere")
    assert again == recipe
    assert again.methods() == recipe.methods()
    assert resolved(again) == resolved(recipe)


SPECS: dict[str, Any] = {
    "loss": st.sampled_from(["l1", "kl", ["ewl1", "ce"]]),
    "text": st.sampled_from(["prompt", ["both", "response"]]),
    "rank": st.sampled_from([1, 8, [2, 3]]),
    "iterations": st.integers(1, 1000),
    "learning_rate": st.floats(1e-6, 1.0),
    "batch_size": st.sampled_from([1, [4, 5]]),
    "entropy_mean": st.sampled_from(["dataset", "sequence", "batch"]),
    "name": st.sampled_from(["a", "B.2", "x@y+z=1"]),
}


@settings(max_examples=60, deadline=None)
@given(spec=st.fixed_dictionaries({"module": st.just("darts")}, optional=SPECS))
def test_any_surgery_survives_being_resolved(spec: dict[str, Any]) -> None:
    several = any(isinstance(v, list) for v in spec.values())
    if several and "name" in spec:
        del spec["name"]
    if "ewl1" not in spec.get("loss", "ewl1"):
        spec.pop("entropy_mean", None)  # nothing would read it
    recipe = parsed(added(yaml.safe_dump({"surgery": [spec]})))
    count = 1
    for value in spec.values():
        count *= len(value) if isinstance(value, list) else 1
    assert len({m.id for m in recipe.methods()}) == count
    assert parsed(resolved(recipe)).methods() == recipe.methods()
