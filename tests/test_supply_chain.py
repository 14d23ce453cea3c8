"""Files from elsewhere: nothing in them is run, and the user is told what to do."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from surgekit.adapters.files import load_adapter, save_adapter
from surgekit.cli import run as command
from surgekit.errors import InputError
from surgekit.merging import merge
from surgekit.models.loading import load_model, load_tokenizer
from surgekit.states.prompts import Prompt, tokenize_prompts
from surgekit.surgery.config import SurgeryConfig
from surgekit.surgery.modules import SurgeryModule

from .hostile import payloads, pickled, poisoned
from .runs import document, make_world
from .sources import edit, lora
from .tiny import HIDDEN, TEMPLATE, llama, tokenizer

KINDS = list(payloads(Path("mark")))
FORMS = ("zip", "old", "bare")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small world, a merge of it and a LoRA."""
    root = make_world(tmp_path_factory.mktemp("world"))
    lora(root / "lora", llama(0), root / "base")
    merge(
        {"merge_method": "linear"}, root / "merged", models={"a": root / "math", "b": root / "code"}
    )
    return root


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """A file that exists if something was run; it must not, unless the test takes it away."""
    path = tmp_path / "mark"
    yield path
    assert not path.exists()


def refused(function: Callable[[], Any], *words: str) -> str:
    with pytest.raises(InputError) as caught:
        function()
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message
    return message


# --- pickles ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_the_files_are_hostile_indeed(kind: str, form: str, tmp_path: Path, mark: Path) -> None:
    file = pickled(tmp_path / "a.bin", payloads(mark)[kind], {"w": torch.ones(2)}, form)
    if form == "bare":
        pickle.loads(file.read_bytes())
    else:
        torch.load(file, weights_only=False)
    mark.unlink()  # raises where nothing was run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_no_pickle_is_run(kind: str, form: str, here: Path, mark: Path) -> None:
    config = {"merge_method": "linear", "parameters": {"weight": 1}}
    poisoned(here / "math", payloads(mark)[kind], form)
    said = refused(lambda: load_model(here / "math"), str(here / "math"), "safetensors")
    # What torch says advises to switch the protection off.
    assert "weights_only" not in said
    models = {"math": here / "math", "code": here / "code"}
    refused(lambda: merge(config, here / "out", models=models), "math", "safetensors")
    assert not (here / "out").exists()
    poisoned(here / "lora", payloads(mark)[kind], form)
    refused(lambda: load_model(here / "lora"), str(here / "lora"), "safetensors")


@pytest.mark.parametrize("form", FORMS)
def test_whatever_the_environment_says(
    form: str, here: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    poisoned(here / "math", payloads(mark)["system"], form)
    poisoned(here / "lora", payloads(mark)["system"], form)
    models = {"math": here / "math", "code": here / "code"}
    refused(lambda: load_model(here / "math"), "safetensors")
    refused(lambda: load_model(here / "lora"), "safetensors")
    refused(lambda: merge({"merge_method": "linear"}, here / "out", models=models), "safetensors")
    # The caller's own torch.load is as it was.
    if form == "zip":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(here / "math" / "pytorch_model.bin")
        mark.unlink()


ROLES: dict[str, tuple[str, list[str]]] = {
    "ingredient of merge": ("math", ["merge", "merge.yml", "out"]),
    "base of merge": ("base", ["merge", "merge.yml", "out"]),
    "base of run": ("base", ["run", "recipe.yaml", "--out", "out"]),
    "expert of run": ("code", ["run", "recipe.yaml", "--out", "out"]),
    "lora of run": ("lora", ["run", "lora.yaml", "--out", "out"]),
    "merged of run": ("merged", ["run", "brought.yaml", "--out", "out"]),
    "base of check": ("base", ["check", "recipe.yaml"]),
    "expert of check": ("math", ["check", "recipe.yaml"]),
    "merged of check": ("merged", ["check", "brought.yaml"]),
    **{
        f"{role} of {verb}": (
            role,
            [
                *(verb, "--merged", "merged", "--prompts", "math=data/math/test.jsonl"),
                *("--expert", f"math={'lora' if role == 'lora' else 'math'}"),
                *(("--out", "out") if verb == "calibrate" else ()),
            ],
        )
        for verb in ("bias", "calibrate")
        for role in ("merged", "math", "lora")
    },
}


@pytest.mark.parametrize("role", ROLES)
def test_no_verb_runs_one(role: str, here: Path, mark: Path, capsys: Capture) -> None:
    whose, call = ROLES[role]
    poisoned(here / whose, payloads(mark)["system"])
    models = [{"model": d, "parameters": {"weight": 1.0}} for d in ("math", "code")]
    config = {"merge_method": "task_arithmetic", "base_model": "base", "models": models}
    (here / "merge.yml").write_text(yaml.safe_dump(config))
    surgery = [{"module": "mean-shift"}]
    made = document(surgery=surgery, seeds=[0])
    (here / "recipe.yaml").write_text(yaml.safe_dump(made))
    made["domains"]["math"]["expert"] = {"lora": "./lora"}
    (here / "lora.yaml").write_text(yaml.safe_dump(made))
    brought = document(surgery=surgery, seeds=[0], merge={"folder": "./merged"})
    (here / "brought.yaml").write_text(yaml.safe_dump(brought))
    status = command(call)
    said = capsys.readouterr()
    assert status == 2
    line = said.out if call[0] == "check" else said.err.splitlines()[-1]
    assert "posix.system" in line
    assert "safetensors" in line
    assert not (here / "out" / "surgery_config.json").exists()


def test_an_honest_bin_still_works(here: Path) -> None:
    expected = load_file(here / "math" / "model.safetensors")
    for form in (True, False):
        (here / "math" / "model.safetensors").unlink(missing_ok=True)
        file = here / "math" / "pytorch_model.bin"
        torch.save(expected, file, _use_new_zipfile_serialization=form)
        state = load_model(here / "math").state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
        out = here / f"out-{form}"
        merge({"merge_method": "linear"}, out, models={"math": here / "math"})
        merged = load_file(out / "model.safetensors")
        assert all(torch.equal(merged[name], tensor) for name, tensor in expected.items())
    folded = load_model(here / "lora").state_dict()
    weights = here / "lora" / "adapter_model.safetensors"
    torch.save(load_file(weights), here / "lora" / "adapter_model.bin")
    weights.unlink()
    again = load_model(here / "lora").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in folded.items())


def test_what_a_trainer_leaves_beside_is_not_opened(
    here: Path, mark: Path, capsys: Capture
) -> None:
    bad = payloads(mark)["system"]
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "vocab.pkl"):
        for folder in ("base", "math", "code", "lora"):
            pickled(here / folder / name, bad, {})
    made = document(surgery=[{"module": "mean-shift"}], seeds=[0])
    made["domains"]["math"]["expert"] = {"lora": "./lora"}
    (here / "recipe.yaml").write_text(yaml.safe_dump(made))
    assert command(["run", "recipe.yaml", "--out", "out", "--quiet"]) == 0, capsys.readouterr().err
    assert not list((here / "out").rglob("*.p*k*l")) + list((here / "out").rglob("*.bin"))


def test_a_pickle_under_another_name(here: Path, mark: Path, capsys: Capture) -> None:
    bad = payloads(mark)["system"]
    save_adapter(SurgeryModule(SurgeryConfig(module="mean-shift", hidden_size=HIDDEN)), here / "ad")
    for form in FORMS:
        pickled(here / "ad" / "surgery.safetensors", bad, {}, form)
        refused(lambda: load_adapter(here / "ad"), "safetensors")
        pickled(here / "states.safetensors", bad, {}, form)
        pickled(here / "prompts.jsonl", bad, {}, form)
        pickled(here / "recipe.yaml", bad, {}, form)
        for call in (
            ["inspect", "ad"],
            ["inspect", "states.safetensors"],
            ["inspect", "math"],
            ["check", "recipe.yaml"],
            ["init", "recipe.yaml"],
            ["bias", "--merged=merged", "--expert=m=math", "--prompts=m=prompts.jsonl"],
        ):
            assert command(call) == 2
            assert len(capsys.readouterr().err.splitlines()) == 1
        pickled(here / "math" / "model.safetensors", bad, {}, form)
        refused(lambda: load_model(here / "math"), "math")


# --- LoRAs that ask for more --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"peft_type": "XLORA", "adapters": {"0": "elsewhere/adapter"}}, "XLORA"),
        ({"peft_type": "PROMPT_TUNING", "tokenizer_name_or_path": "evil"}, "PROMPT_TUNING"),
        ({"peft_type": "SHADOW", "shadow_model": "elsewhere/model"}, "SHADOW"),
        ({"peft_type": ["LORA"]}, "peft_type"),
        ({"peft_type": None}, "peft_type"),
        ({"megatron_config": {"a": 1}, "megatron_core": "evil"}, "megatron_config"),
        ({"megatron_config": {"a": 1}, "megatron_core": "megatron.core"}, "megatron_config"),
    ],
)
def test_a_lora_that_names_code_or_models(
    changes: dict[str, Any], word: str, here: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()")
    monkeypatch.syspath_prepend(here)
    edit(here / "lora" / "adapter_config.json", **changes)
    refused(lambda: load_model(here / "lora"), word, str(here / "lora"))
    made = document(seeds=[0])
    made["domains"]["math"]["expert"] = {"lora": "./lora"}
    (here / "recipe.yaml").write_text(yaml.safe_dump(made))
    assert command(["check", "recipe.yaml"]) == 2


def test_an_auto_mapping_is_not_followed(
    here: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Base: pass\n")
    monkeypatch.syspath_prepend(here)
    mapping = {"base_model_class": "Base", "parent_library": "evil"}
    edit(here / "lora" / "adapter_config.json", auto_mapping=mapping)
    load_model(here / "lora")
    assert "evil" not in sys.modules


def test_kin_of_lora_still_fold(world: Path, tmp_path: Path) -> None:
    from peft import LoKrConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        config = LoKrConfig(r=2, target_modules=["q_proj"], init_weights=False)
        get_peft_model(llama(0), config).save_pretrained(str(tmp_path / "lokr"))  # type: ignore[arg-type]
    model = load_model({"model": str(world / "base"), "lora": str(tmp_path / "lokr")})
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(model.state_dict()[name], llama(0).state_dict()[name])


def test_a_folder_is_a_model_or_a_lora(here: Path) -> None:
    for file in (here / "lora").iterdir():
        shutil.copy(file, here / "math")
    refused(lambda: load_model(here / "math"), "found both")
    refused(
        lambda: merge({"merge_method": "linear"}, here / "out", models={"m": here / "math"}), "both"
    )


# --- templates and YAML -------------------------------------------------------------------------

TEMPLATES = {
    "class of a text": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals of a function": "{{ lipsum.__globals__['os'].system('touch MARK') }}",
    "globals of a helper": "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "itself": "{{ self.__init__.__globals__ }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "a long text": "{{ 'a' * 10**13 }}",
    "a wide field": "{{ '%10000000000000d' % 1 }}",
    "a macro of itself": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "a change of its input": "{{ messages.append(1) }}",
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_is_held_in_its_sandbox(kind: str, mark: Path) -> None:
    template = TEMPLATES[kind].replace("MARK", str(mark)) + "{{ prompt }}"
    prompt = [Prompt(prompt="a", response="b")]
    refused(lambda: tokenize_prompts(prompt, tokenizer(), format=template), "format template")
    refused(lambda: tokenize_prompts(prompt, tokenizer(template)), "chat template")


@pytest.mark.parametrize(
    "template", ["{{ messages.__class__ }}", "{{ messages|attr('__class__') }}"]
)
def test_what_is_hidden_from_a_template_is_empty(template: str) -> None:
    prompt = [Prompt(prompt="a")]
    said = tokenize_prompts(prompt, tokenizer(TEMPLATE + template))
    assert said.ids.tolist() == tokenize_prompts(prompt, tokenizer()).ids.tolist()


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch MARK']",
        "!!python/object/new:os.system ['touch MARK']",
        "!!python/name:os.system",
        "!!python/module:os",
    ],
)
def test_yaml_tags_make_nothing(tag: str, here: Path, mark: Path, capsys: Capture) -> None:
    tag = tag.replace("MARK", str(mark))
    for line in (f"merge_method: {tag}", f"merge_method: linear\nmodels: [{tag}]"):
        (here / "merge.yml").write_text(line)
        assert command(["merge", "merge.yml", "out"]) == 2
        assert command(["init", "merge.yml"]) == 2
    text = yaml.safe_dump(document(merge=None))
    (here / "recipe.yaml").write_text(f"{text}\nmerge: {tag}\n")
    assert command(["check", "recipe.yaml"]) == 2
    assert "python" in capsys.readouterr().err


def test_json_of_a_tokenizer_names_no_other_files(here: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("of the user")
    names = ("tokenizer_file", "vocab_file", "merges_file", "chat_template_file")
    changes = dict.fromkeys(names, str(tmp_path / "secret.txt"))
    edit(here / "base" / "tokenizer_config.json", **changes)
    models = {"math": here / "math"}
    merge({"merge_method": "task_arithmetic"}, here / "out", models=models, base=here / "base")
    assert len(load_tokenizer(here / "out")) == len(tokenizer())
    for file in (here / "out").iterdir():
        assert b"of the user" not in file.read_bytes()
        json.loads(file.read_text()) if file.suffix == ".json" else None
