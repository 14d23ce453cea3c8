"""Models that do not belong together are found before any work; those that do are left alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from surgekit.errors import InputError, NotFiniteError
from surgekit.findings import Finding
from surgekit.merging import merge
from surgekit.pipeline.preflight import preflight
from surgekit.pipeline.preflight.merge import check_merge
from surgekit.pipeline.preflight.models import check_models
from surgekit.pipeline.run_directory import RunDirectory, expect_free

from .runs import Watch, document, make_world, recipe
from .sources import edit, lora
from .tiny import checkpoint, llama, shifted
from .zoo import mergekit_alone

OWN = "domains.math.expert"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def spoilt(world: Path, tmp_path: Path) -> Path:
    """A copy of the world, its models to be changed."""
    return Path(shutil.copytree(world, tmp_path / "world"))


def findings(root: Path, *, deep: bool = False, **changes: Any) -> list[Finding]:
    """What the pre-flight of models and merge finds; all else is tested elsewhere."""
    given = recipe(root, **changes)
    models, found = check_models(given)
    return found + check_merge(given, models, deep=deep)


def said(found: list[Finding], level: str, *words: str) -> Finding:
    """The one finding of a level that has all words in it."""
    fitting = [f for f in found if f.level == level and all(w in f.message for w in words)]
    assert len(fitting) == 1, found
    return fitting[0]


def expert(source: Any, **changes: Any) -> dict[str, Any]:
    """The recipe's domains with another expert for math."""
    made = document()["domains"]
    made["math"] |= {"expert": source} | changes
    return made


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_a_sound_recipe_has_nothing_to_say(world: Path) -> None:
    assert findings(world) == []


# --- experts of another base --------------------------------------------------------------------


def rebuilt(**sizes: Any) -> Callable[[Path], Any]:
    def work(folder: Path) -> None:
        shutil.rmtree(folder)
        checkpoint(folder, llama(0, **sizes))

    return work


def configured(**changes: Any) -> Callable[[Path], Any]:
    return lambda folder: edit(folder / "config.json", **changes)


def with_tensor(name: str, value: torch.Tensor | None) -> Callable[[Path], Any]:
    def work(folder: Path) -> None:
        found = weights(folder)
        found.pop(name, None)
        write(folder, found if value is None else found | {name: value})

    return work


def poisoned(folder: Path) -> None:
    found = weights(folder)
    found["model.norm.weight"][3] = float("nan")
    write(folder, found)


def rope(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


# (what is done to math's expert, level, words, what mergekit does by itself)
FOREIGN: dict[str, tuple[Callable[[Path], Any], str, tuple[str, ...], str]] = {
    "another kind": (
        configured(model_type="mistral", architectures=["MistralForCausalLM"]),
        "error",
        (OWN, "model_type is mistral, that of base is llama", "experts of one base"),
        "early",
    ),
    "another class": (
        configured(architectures=["LlamaForSequenceClassification"]),
        "error",
        ("architecture is LlamaForSequenceClassification, that of base is LlamaForCausalLM",),
        "early",
    ),
    "no class at all": (
        configured(architectures=None),
        "error",
        (OWN, "expected one name under architectures in its config.json", "found None"),
        "early",
    ),
    "more layers": (
        rebuilt(num_hidden_layers=3),
        "error",
        ("num_hidden_layers is 3, that of base is 2",),
        "early",
    ),
    "a wider middle": (
        rebuilt(intermediate_size=64),
        "error",
        ("intermediate_size is 64, that of base is 48",),
        "late",
    ),
    "other heads of the same size together": (
        rebuilt(num_attention_heads=8, num_key_value_heads=4),
        "error",
        ("num_attention_heads is 8, that of base is 4", "belong to different heads"),
        "silent",
    ),
    "another activation": (
        configured(hidden_act="gelu"),
        "error",
        ("hidden_act is gelu, that of base is silu", "another function"),
        "silent",
    ),
    "another rope_theta": (
        configured(**rope(1e6)),
        "warning",
        ("rope_theta is 1000000.0, that of base is 10000.0", "the merged model keeps the base's"),
        "silent",
    ),
    "rope scaling": (
        configured(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
        "warning",
        ("factor is 4.0, that of base is None",),
        "silent",
    ),
    "another epsilon": (
        configured(rms_norm_eps=1e-3),
        "warning",
        ("rms_norm_eps is 0.001, that of base is 1e-06",),
        "silent",
    ),
    "longer sequences": (
        configured(max_position_embeddings=4096),
        "note",
        ("max_position_embeddings is 4096, that of base is 2048",),
        "silent",
    ),
    "a head tied to the embedding": (
        rebuilt(tie_word_embeddings=True),
        "warning",
        ("its head is its embedding (tie_word_embeddings)", "averages that embedding into"),
        "silent",
    ),
    "a weight more": (
        with_tensor("extra.weight", torch.ones(3)),
        "warning",
        ("1 of its weights are not in base, e.g. extra.weight", "drops them"),
        "silent",
    ),
    "a weight less": (
        with_tensor("model.layers.1.mlp.up_proj.weight", None),
        "error",
        ("1 weights of base are not in it, e.g. model.layers.1.mlp.up_proj.weight",),
        "late",
    ),
    "a weight of another shape": (
        with_tensor("model.norm.weight", torch.ones(16)),
        "error",
        ("model.norm.weight is (16,), in base it is (32,)",),
        "late",
    ),
    "a longer vocabulary": (
        rebuilt(vocab_size=321),
        "error",
        ("its embedding has 321 rows, that of base has 320", "tokenizer: {source: base}"),
        "late",
    ),
    "NaN": (
        poisoned,
        "error",
        (OWN, "weight model.norm.weight holds NaN or infinity"),
        "silent",
    ),
    "quantised weights": (
        configured(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
        "error",
        ("its weights are quantised", "mix the packed numbers"),
        "silent",
    ),
}


@pytest.mark.parametrize(
    ("change", "level", "words", "alone"), FOREIGN.values(), ids=FOREIGN.keys()
)
def test_an_expert_of_another_base(
    change: Callable[[Path], Any],
    level: str,
    words: tuple[str, ...],
    alone: str,
    spoilt: Path,
    tmp_path: Path,
) -> None:
    change(spoilt / "math")
    said(findings(spoilt), level, *words)
    models = {n: spoilt / n for n in ("base", "math", "code")}
    config: dict[str, Any] = {
        "merge_method": "task_arithmetic",
        "base_model": "base",
        "models": [{"model": n, "parameters": {"weight": 0.5}} for n in ("code", "math")],
        "dtype": "float32",
    }
    assert mergekit_alone(config, models, tmp_path / "alone") == alone
    if level == "error":
        with pytest.raises(InputError, match="math") as caught:
            merge(config, tmp_path / "out", models=models)
        assert not list(tmp_path.glob("*out*"))
        assert isinstance(caught.value, NotFiniteError) == (change is poisoned)


def test_bad_values_are_found_before_mergekit_begins(
    spoilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mergekit.merge

    def begin(*_: Any, **__: Any) -> None:
        raise AssertionError("mergekit was called")

    monkeypatch.setattr(mergekit.merge, "run_merge", begin)
    poisoned(spoilt / "math")
    models = {n: spoilt / n for n in ("base", "math", "code")}
    with pytest.raises(NotFiniteError, match=r"model math .*weight model.norm.weight holds NaN"):
        merge(document()["merge"], tmp_path / "out", models=models)


def test_models_of_another_width_are_named_with_it(spoilt: Path) -> None:
    rebuilt(hidden_size=16)(spoilt / "math")
    error = said(findings(spoilt), "error", "models of one hidden size are needed")
    assert "base 32, domains.math.expert 16, domains.code.expert 32" in error.message


def test_a_stranger_is_asked_about(spoilt: Path) -> None:
    shutil.rmtree(spoilt / "math")
    checkpoint(spoilt / "math", llama(99))
    warning = said(findings(spoilt), "warning", OWN, "is it an expert of base?")
    assert "1.4" in warning.message  # √2
    assert "8 matrices sampled" in warning.message


def test_an_expert_that_is_the_base_or_another_expert(spoilt: Path) -> None:
    for copy in ("math", "code"):
        shutil.rmtree(spoilt / copy)
        shutil.copytree(spoilt / "base", spoilt / copy)
    found = findings(spoilt)
    said(found, "warning", OWN, "the same weights as base, value by value")
    said(found, "warning", "domains.code.expert", "the same weights as base")


def test_one_changed_weight_makes_an_expert(spoilt: Path) -> None:
    found = weights(spoilt / "base")
    found["model.norm.weight"] += 1
    shutil.rmtree(spoilt / "math")
    shutil.copytree(spoilt / "base", spoilt / "math")
    write(spoilt / "math", found)
    assert findings(spoilt) == []


# --- what is legitimate -------------------------------------------------------------------------


def test_a_base_in_half_precision_and_a_whole_expert(spoilt: Path) -> None:
    shutil.rmtree(spoilt / "base")
    checkpoint(spoilt / "base", llama(0, dtype=torch.bfloat16))
    assert findings(spoilt) == []
    merge = {k: v for k, v in document()["merge"].items() if k != "dtype"}
    (warning,) = findings(spoilt, merge=merge)
    assert (warning.level, "what is written is float32" in warning.message) == ("warning", True)


def test_one_padding_token_more_with_the_tokenizer_said(spoilt: Path, tmp_path: Path) -> None:
    """32,001 rows against 32,000, as in WizardMath."""
    found = weights(spoilt / "math")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        found[name] = torch.cat([found[name], torch.zeros(1, 32)])
    write(spoilt / "math", found)
    edit(spoilt / "math" / "config.json", vocab_size=321)
    file = spoilt / "math" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 259, "content": "[P]"})
    file.write_text(json.dumps(tokenizer))
    config = document()["merge"] | {"tokenizer": {"source": "base"}}
    found_now = findings(spoilt, merge=config)
    assert {f.level for f in found_now} == {"warning", "note"}
    said(found_now, "note", "1 tokens that base has not ('[P]')")
    said(found_now, "warning", "vocabularies differ", "320", "321")
    models = {n: spoilt / n for n in ("base", "math", "code")}
    merge(config, tmp_path / "out", models=models)


def test_templates_that_differ_are_noted_with_what_is_kept(spoilt: Path) -> None:
    for name, kept in (("math", "keeps the base's"), ("base", "keeps none, for the base has none")):
        (spoilt / name / "chat_template.jinja").unlink()
        if name == "math":
            (spoilt / "code" / "chat_template.jinja").write_text("{{ messages }} otherwise")
        notes = [f for f in findings(spoilt) if f.level == "note"]
        assert len(notes) == 1
        assert kept in notes[0].message
        assert "domains.code.expert" in notes[0].message
    assert {f.level for f in findings(spoilt)} == {"note"}


def test_another_end_of_text_is_warned_of(spoilt: Path) -> None:
    edit(spoilt / "math" / "tokenizer_config.json", eos_token="<|endoftext|>")
    said(findings(spoilt), "warning", OWN, "'<|endoftext|>'", "base with '<|im_end|>'", "not stop")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("base", "own", "told"),
    [(1, 2, True), (1, [1, 2], True), ([1, 2], 2, False), (1, 1, False), (None, 2, False)],
)
def test_another_id_to_stop_at_is_warned_of(
    spoilt: Path, file: str, base: Any, own: Any, told: bool
) -> None:
    """transformers stops by these, though both tokenizers call the same token their end."""
    for name, value in (("base", base), ("math", own), ("code", base)):
        for other in ("config.json", "generation_config.json"):
            path = spoilt / name / other
            known = json.loads(path.read_text()) if path.is_file() else {}
            known["eos_token_id"] = value if other == file else None
            path.write_text(json.dumps(known))
    found = [f for f in findings(spoilt) if "eos_token_id" in f.message]
    assert bool(found) is told
    if told:
        shown = "1, 2" if own == [1, 2] else "2"
        said(found, "warning", OWN, f"stops at id {shown} (eos_token_id)", "base at 1", "not stop")


def test_task_vectors_from_another_base_are_warned_of(spoilt: Path) -> None:
    shutil.copytree(spoilt / "base", spoilt / "same")
    checkpoint(spoilt / "other", shifted(llama(0), 9, 0.3))

    def warned(**merge: Any) -> list[str]:
        found = findings(spoilt, merge=document()["merge"] | merge)
        return [f.message for f in found if "is taken" in f.message or "are taken" in f.message]

    for model in ("./other", "math"):
        (message,) = warned(base_model=model, models=listed("math", "code")["models"])
        assert message.startswith("merge.base_model is ")
        assert f"the recipe's base is {spoilt / 'base'}: task vectors" in message
    for model in ("./base", "./same", "base"):
        assert warned(base_model=model) == []
    halves = [{"model": n, "layer_range": [0, 2]} for n in ("math", "code", "./other")]
    parts = [{"sources": halves, "base_model": "./other"}]
    assert len(warned(slices=parts, parameters={"weight": 1.0})) == 1
    (spoilt / "in-file.yml").write_text(
        yaml.safe_dump(listed("math", "code") | {"base_model": "other"})
    )
    found = findings(spoilt, merge="./in-file.yml")
    said(found, "warning", "merge.base_model is other, the recipe's base is")


def test_a_merge_between_two_experts_calls_one_of_them_its_base(spoilt: Path) -> None:
    slerp = {"merge_method": "slerp", "base_model": "math", "dtype": "float32"}
    listing = {"models": listed("math", "code")["models"], "parameters": {"t": 0.5}}
    found = findings(spoilt, merge=slerp | listing)
    assert not [f for f in found if f.level == "error"]
    assert not [f for f in found if "task vectors" in f.message]


def test_another_tokenizer_is_an_error(spoilt: Path) -> None:
    file = spoilt / "math" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    pieces = sorted(tokenizer["model"]["vocab"])
    tokenizer["model"]["vocab"] = {p: len(pieces) - 1 - i for i, p in enumerate(pieces)}
    file.write_text(json.dumps(tokenizer))
    error = said(findings(spoilt), "error", OWN, "ids mean another token than for base")
    assert "the first being 0" in error.message


# --- LoRAs --------------------------------------------------------------------------------------


def lora_of(root: Path, name: str = "lora", sizes: dict[str, Any] | None = None, **s: Any) -> Path:
    return lora(root / name, llama(0, **(sizes or {})), **s)


def lora_findings(root: Path) -> list[Finding]:
    return findings(root, domains=expert({"lora": "./lora"}))


def test_a_lora_of_this_base_is_left_alone(spoilt: Path) -> None:
    lora_of(spoilt, target_modules=["q_proj", "k_proj", "v_proj", "up_proj", "gate_proj"])
    assert lora_findings(spoilt) == []
    edit(spoilt / "lora" / "adapter_config.json", base_model_name_or_path=str(spoilt / "base"))
    assert lora_findings(spoilt) == []
    edit(spoilt / "lora" / "adapter_config.json", base_model_name_or_path="acme/Base")
    assert lora_findings(spoilt) == []


LORAS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "of another width": (
        {"sizes": {"hidden_size": 16}},
        "error",
        ("does not fit", "mlp.down_proj is 32 × 48 there, and 16 × 48 for the LoRA"),
    ),
    "of a shallower model": (
        {"sizes": {"num_hidden_layers": 1}},
        "error",
        ("no weights for 2 modules", "e.g. model.layers.1.", "of another model"),
    ),
    "of a deeper model": (
        {"sizes": {"num_hidden_layers": 4}},
        "error",
        ("of another model: 4 of its 8 modules are not in", "e.g. model.layers.2."),
    ),
    "that does nothing": (
        {"init_lora_weights": True},
        "warning",
        ("changes nothing", "this expert is the base itself"),
    ),
}


@pytest.mark.parametrize(("made", "level", "words"), LORAS.values(), ids=LORAS.keys())
def test_a_lora(made: dict[str, Any], level: str, words: tuple[str, ...], spoilt: Path) -> None:
    lora_of(spoilt, **made)
    said(lora_findings(spoilt), level, OWN, *words)


def changed(folder: Path, **config: Any) -> None:
    edit(folder / "adapter_config.json", **config)


def nan_in(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    found = load_file(file)
    name = sorted(found)[-1]
    found[name][0, 0] = float("nan")
    save_file(found, file, {"format": "pt"})


def cut(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        (lambda f: changed(f, r=8), "error", ("of rank 8, its weights are of rank 4",)),
        (lambda f: changed(f, lora_alpha=0), "warning", ("changes nothing",)),
        (
            lambda f: changed(f, base_model_name_or_path="meta-llama/Llama-2-7b-hf"),
            "warning",
            ("says it was trained on meta-llama/Llama-2-7b-hf, and is laid on", "base"),
        ),
        (
            lambda f: changed(f, target_modules=["q_proj", "down_proj", "o_proj"]),
            "error",
            ("no weights for 2 modules", "o_proj"),
        ),
        (nan_in, "error", ("of the LoRA holds NaN or infinity",)),
        (cut, "error", ("truncated or damaged",)),
        (lambda f: (f / "adapter_config.json").unlink(), "error", ("no adapter_config.json",)),
    ],
)
def test_a_spoilt_lora(
    change: Callable[[Path], Any], level: str, words: tuple[str, ...], spoilt: Path
) -> None:
    change(lora_of(spoilt))
    said(lora_findings(spoilt), level, OWN, *words)


def test_a_saved_module_of_another_size(spoilt: Path) -> None:
    """A LoRA whose embedding was made longer for tokens of its own."""
    made = {"sizes": {"vocab_size": 321}, "modules_to_save": ["embed_tokens"]}
    lora_of(spoilt, **made)
    words = ("model.embed_tokens.weight is 320 × 32 there, and 321 × 32 in the LoRA",)
    said(lora_findings(spoilt), "error", *words)


# --- what is not verified -----------------------------------------------------------------------


def test_large_models_are_scanned_when_it_is_asked_for(
    spoilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surgekit.pipeline.preflight import merge as of_merges

    poisoned(spoilt / "code")
    monkeypatch.setattr(of_merges, "CHEAP_BYTES", 1000)
    line = said(findings(spoilt), "unverified", "the values of weights", "GiB to read")
    assert "check --deep does, and a run does before it merges" in line.message
    said(findings(spoilt, deep=True), "error", "domains.code.expert", "holds NaN or infinity")


def test_a_hub_id_that_is_not_cached_is_not_fetched(
    world: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    asked: list[dict[str, Any]] = []
    real = huggingface_hub.snapshot_download

    def watched(*args: Any, **options: Any) -> str:
        asked.append(options)
        return real(*args, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", watched)
    found = findings(world, domains=expert("acme/math-7b"))
    said(found, "unverified", "acme/math-7b: not in the local cache")
    assert [f.level for f in found] == ["unverified"]
    assert all(options.get("local_files_only") for options in asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said(findings(world, domains=expert("acme/math-7b")), "error", "neither in the local cache")


def test_a_bin_of_the_old_form_is_merged_and_named_as_not_verified(
    spoilt: Path, tmp_path: Path
) -> None:
    file = spoilt / "math" / "pytorch_model.bin"
    torch.save(weights(spoilt / "math"), file, _use_new_zipfile_serialization=False)
    (spoilt / "math" / "model.safetensors").unlink()
    lines = [f for f in findings(spoilt) if f.level == "unverified"]
    assert all(f.message.startswith(OWN) for f in lines)
    assert any("a .bin of the old form" in f.message for f in lines)
    models = {n: spoilt / n for n in ("base", "math", "code")}
    result = merge(document()["merge"], tmp_path / "out", models=models)
    assert {f.level for f in result.findings} == {"unverified"}


def test_code_that_comes_with_a_model_is_not_run_to_check_it(spoilt: Path) -> None:
    configured(auto_map={"AutoModelForCausalLM": "modeling.M"})(spoilt / "math")
    (spoilt / "math" / "modeling.py").write_text("raise SystemExit('ran')\n")
    said(findings(spoilt), "unverified", OWN, "its code comes with it")


# --- the recipe around the merge ----------------------------------------------------------------


def listed(*names: str) -> dict[str, Any]:
    models = [{"model": n, "parameters": {"weight": 0.5}} for n in names]
    return {"merge_method": "task_arithmetic", "models": models, "dtype": "float32"}


def test_a_configuration_is_looked_at_though_a_model_is_missing(world: Path) -> None:
    config = listed("math", "maths") | {"parameters": {"lamda": 1}}
    found = findings(world, merge=config, domains=expert("./nowhere"))
    said(found, "error", OWN, "model folder expected")
    said(found, "error", "'maths' is no local folder", "known names: base, code, math")
    said(found, "error", "parameters.lamda", "did you mean 'lambda'")
    found = findings(world, merge={"merge_method": "tie"}, base="./nowhere")
    said(found, "error", "unknown merge_method 'tie'; did you mean 'ties'?")


def test_an_expert_outside_of_the_merge_and_a_model_of_no_domain(spoilt: Path) -> None:
    checkpoint(spoilt / "other", shifted(llama(0), 9, 0.3))
    found = findings(spoilt, merge=listed("math", "./other"))
    said(found, "warning", "domains.code: its expert does not take part in the merge")
    said(found, "warning", "the merge takes in", "other, of which no domain is the expert")
    assert len(found) == 2


def brought(root: Path, **changes: Any) -> list[Finding]:
    return findings(root, merge={"folder": "./merged"}, **changes)


def test_a_merge_at_hand_is_held_against_its_recipe(spoilt: Path) -> None:
    config = listed("math", "code")
    merge(config, spoilt / "merged", models={n: spoilt / n for n in ("base", "math", "code")})
    assert brought(spoilt) == []
    record = spoilt / "merged" / "mergekit_config.yml"
    record.write_text("merge_method: linear\nmodels: [{model: acme/math}, {model: acme/chat}]\n")
    warning = said(brought(spoilt), "warning", "by its mergekit_config.yml")
    assert "made of chat, math; the expert of code is none of these" in warning.message
    configured(**rope(5e5))(spoilt / "merged")
    said(brought(spoilt), "warning", "merge: rope_theta is 500000.0, that of base is 10000.0")
    poisoned(spoilt / "merged")
    said(brought(spoilt), "error", "merge: weight model.norm.weight holds NaN")
    rebuilt(num_hidden_layers=3)(spoilt / "merged")
    said(brought(spoilt), "warning", "merge: num_hidden_layers is 3, that of base is 2")


def test_settings_of_a_merge_are_found_though_its_models_are_still_to_be_written(
    spoilt: Path,
) -> None:
    lora_of(spoilt)
    domains = expert({"lora": "./lora"})
    domains["code"]["expert"] = {"lora": "./lora"}
    config = {"merge_method": "ties", "parameters": {"density": 0.5, "weight": 0.3}}
    found = findings(spoilt, domains=domains, merge=config)
    said(found, "warning", "it does nothing", "the models enter as math 0.5, code 0.5")
    assert not (spoilt / "models").exists()


# --- where it is to be written ------------------------------------------------------------------


def test_a_run_directory_in_use_is_found(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    expect_free(out)
    with RunDirectory.open(out, Watch()):
        before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
        for _ in range(2):
            said(preflight(recipe(world), out=out), "error", "another run is at work in", str(out))
        assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    expect_free(out)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("milk")
    found = preflight(recipe(world), out=tmp_path / "notes")
    said(found, "error", "holds other things than a run; name another with --out")
    assert [p.name for p in (tmp_path / "notes").iterdir()] == ["todo.txt"]
