"""Code that comes with a checkpoint: not a byte of it runs unasked, and asked it works."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import surgekit
from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.merging import merge
from surgekit.models.loading import load_model, load_tokenizer, materialize
from surgekit.pipeline.run import run_recipe
from surgekit.recipe import load_recipe

from .hostile import mixer, mixer_logits, mixer_world
from .runs import document
from .sources import edit, lora
from .tiny import checkpoint, llama

Capture = pytest.CaptureFixture[str]
FLAG = "--trust-remote-code"
ASK = ["--merged", "code", "--expert", "math=math", "--prompts", "math=data/math/test.jsonl"]
CALLS = {
    "check": ["check", "recipe.yaml", "--deep"],
    "merge": ["merge", "merge.yml", "merged", "--quiet"],
    "run": ["run", "recipe.yaml", "--out", "run", "--quiet"],
    "bias": ["bias", *ASK, "--quiet"],
    "calibrate": ["calibrate", *ASK, "--out", "adapter", "--iterations", "2", "--quiet"],
}


@pytest.fixture(autouse=True)
def _modules_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers copies code into its cache and imports it from there."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("transformers_modules"):
            del sys.modules[name]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that the code leaves when it is run."""
    return tmp_path / "mark"


@pytest.fixture
def here(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small world, of models that need their own code."""
    root = tmp_path / "world"
    mixer_world(root, mark)
    models = [
        {"model": d, "parameters": {"weight": w}} for d, w in (("math", 0.25), ("code", 0.75))
    ]
    merging = {"merge_method": "linear", "models": models, "dtype": "float32"}
    (root / "merge.yml").write_text(yaml.safe_dump(merging))
    made = document(seeds=[0], surgery=[{"module": "darts", "iterations": 2, "rank": 2}])
    (root / "recipe.yaml").write_text(yaml.safe_dump(made))
    monkeypatch.chdir(root)
    return root


def test_no_verb_runs_it_unasked(here: Path, mark: Path, capsys: Capture) -> None:
    for verb, call in CALLS.items():
        assert command(call) == 2, verb
        said = capsys.readouterr()
        if verb == "check":  # what it finds is its outcome
            assert FLAG in said.out
        else:
            assert FLAG in said.err
            assert len(said.err.splitlines()) == 1
        assert not mark.exists(), verb
    command(["check", "recipe.yaml"])
    command(["inspect", "math"])
    command(["init", "merge.yml"])
    for source in ("math", "code"):
        with pytest.raises(InputError, match=FLAG):
            load_model(source)
    with pytest.raises(InputError, match=FLAG):
        run_recipe(load_recipe("recipe.yaml"), here / "run")
    assert not mark.exists()
    assert not (here / "merged").exists()
    assert not (here / "adapter").exists()


@pytest.mark.parametrize("verb", CALLS)
def test_every_verb_runs_it_if_asked(verb: str, here: Path, mark: Path, capsys: Capture) -> None:
    assert command([*CALLS[verb], FLAG]) == 0, capsys.readouterr().err
    assert mark.exists()


def test_what_it_gives_is_right(here: Path, mark: Path) -> None:
    math, code = (load_file(here / n / "model.safetensors") for n in ("math", "code"))
    expected = {name: 0.25 * math[name] + 0.75 * code[name] for name in math}
    assert command([*CALLS["merge"], FLAG]) == 0
    found = load_file(here / "merged" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)
    # The merged model brings its code along, and is what the formula says.
    model = load_model("merged", trust_remote_code=True)
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    torch.testing.assert_close(logits, mixer_logits(found, ids), rtol=1e-4, atol=1e-4)
    call = [a if a != "code" else "merged" for a in CALLS["calibrate"]]
    assert command([*call, FLAG]) == 0
    with surgekit.attach(model, "adapter"):
        corrected = model(input_ids=torch.tensor([ids])).logits[0].double()
    assert (corrected - logits).abs().max() > 1e-4


def test_a_lora_on_such_a_model_takes_the_code_along(here: Path) -> None:
    base = load_model("base", trust_remote_code=True)
    modules = ["layers.0", "layers.1"]
    lora(here / "lora", base, here / "base", target_modules=modules, task_type=None)
    with pytest.raises(InputError, match=FLAG):
        load_model("lora")
    source = {"model": "base", "lora": "lora"}
    expected = load_model(source, trust_remote_code=True)
    materialize(source, here / "whole", trust_remote_code=True)
    again = load_model("whole", trust_remote_code=True)
    name = "model.layers.0.weight"
    assert torch.equal(again.state_dict()[name], expected.state_dict()[name])
    assert not torch.equal(again.state_dict()[name], load_file("base/model.safetensors")[name])


def test_a_known_model_with_code_beside_runs_without_it(tmp_path: Path, mark: Path) -> None:
    for seed, name in enumerate(("a", "b")):
        folder = checkpoint(tmp_path / name, llama(seed))
        mixer(tmp_path / "mixer", mark, 0)
        shutil.copy(tmp_path / "mixer" / "modeling_mixer.py", folder)
        classes = {"AutoConfig": "MixerConfig", "AutoModelForCausalLM": "MixerForCausalLM"}
        mapping = {auto: f"modeling_mixer.{c}" for auto, c in classes.items()}
        edit(folder / "config.json", auto_map=mapping)
        edit(
            folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "modeling_mixer.T"]}
        )
        (folder / "custom_generate").mkdir()
        (folder / "custom_generate" / "generate.py").write_text(f"open({str(mark)!r}, 'w').close()")
    load_model(tmp_path / "a")
    tokens = load_tokenizer(tmp_path / "a")(["text"], return_tensors="pt")
    load_model(tmp_path / "a").generate(**tokens, max_new_tokens=2)
    models = {name: tmp_path / name for name in ("a", "b")}
    merge({"merge_method": "linear"}, tmp_path / "merged", models=models)
    merge(
        {"merge_method": "linear", "tokenizer": {"source": "union"}}, tmp_path / "u", models=models
    )
    assert not list(tmp_path.glob("merged/*.py"))
    load_model(tmp_path / "merged")
    assert not mark.exists()


def test_code_of_another_repository_is_not_asked_for(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a", llama(0))
    mapping = {"AutoConfig": "other/repo--file.Class", "AutoModelForCausalLM": "other/repo--file.C"}
    edit(folder / "config.json", model_type="none_such", auto_map=mapping)
    with pytest.raises(InputError, match=FLAG):
        load_model(folder)
    with pytest.raises(InputError, match=FLAG):
        merge({"merge_method": "linear"}, tmp_path / "out", models={"a": folder})
    with pytest.raises(InputError, match="connect"):  # no hub is reached in a test
        load_model(folder, trust_remote_code=True)


def test_a_tokenizer_s_code_is_not_run_unasked(tmp_path: Path, mark: Path) -> None:
    folder = checkpoint(tmp_path / "a", llama(0))
    (folder / "tokenization_own.py").write_text(
        f"open({str(mark)!r}, 'w').close()\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "class Own(PreTrainedTokenizerFast):\n    pass\n"
    )
    mapping = {"AutoTokenizer": [None, "tokenization_own.Own"]}
    edit(folder / "tokenizer_config.json", tokenizer_class="Own", auto_map=mapping)
    with pytest.raises(InputError, match=FLAG):
        load_tokenizer(folder)
    assert not mark.exists()
    assert type(load_tokenizer(folder, trust_remote_code=True)).__name__ == "Own"
    assert mark.exists()


@pytest.mark.parametrize(
    "name", ["evil/kernel", "kernels-community/flash-attn", "evil/kernel@main:f"]
)
def test_attention_code_from_a_hub_is_not_fetched_unasked(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a", llama(0))
    for key in ("attn_implementation", "_attn_implementation"):
        edit(folder / "config.json", **{key: name})
        with pytest.raises(InputError, match="attention code from the hub"):
            load_model(folder)
        with pytest.raises(InputError) as asked_for:  # there is no hub here to load it from
            load_model(folder, trust_remote_code=True)
        assert "attention code" not in str(asked_for.value)
        config = json.loads((folder / "config.json").read_text())
        del config[key]
        (folder / "config.json").write_text(json.dumps(config))
    load_model(folder)
