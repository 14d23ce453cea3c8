"""What must hold of any bytes at all: each reader accepts what it can use, or says what is wrong.

Shared by the property tests, by the inputs under ``fuzz/regressions`` and by the fuzzers in
``fuzz/``. A check takes bytes and returns nothing; an exception is a finding.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import PreTrainedTokenizerFast

from surgekit.adapters.files import CONFIG_FILE, TENSOR_FILE, load_adapter, save_adapter
from surgekit.errors import InputError, printable
from surgekit.merging.config import (
    absolute_paths,
    config_file,
    fill_base,
    in_order,
    list_experts,
    parameters_given,
    read_merge_config,
    references,
    resolve_models,
)
from surgekit.merging.mergekit_guard import mergekit_errors, tamed
from surgekit.merging.settings import check_settings
from surgekit.models.checkpoint import Checkpoint, TensorInfo, expected_tensors, read_checkpoint
from surgekit.models.gguf_header import gguf_checkpoint, read_gguf
from surgekit.models.lora_header import check_lora, read_lora
from surgekit.recipe import Recipe, load_recipe, parse_recipe
from surgekit.states.heads import load_head, save_head
from surgekit.states.prompts import Prompt, TokenizedPrompts, read_prompts, tokenize_prompts
from surgekit.states.states import States, load_states, save_states
from surgekit.surgery.config import TextPart
from surgekit.surgery.modules import SurgeryModule, tensor_shapes

from .tiny import tokenizer

SEPARATOR = b"\n%%%%\n"
"""Between the files of one input."""
_MESSAGE = 1500
TEXTS: tuple[TextPart, ...] = ("prompt", "response", "both")
FORMATS = ("chat", "plain", "<{{ prompt }}>")


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="surgekit-", dir=place) as folder:
        yield Path(folder)


def said_well(error: InputError, start: str = "") -> None:
    """A refusal is one line of reasonable length that names no library."""
    message = str(error)
    assert message.startswith(start), message
    assert 0 < len(message) <= _MESSAGE, len(message)
    assert len(message.splitlines()) == 1, message
    assert printable(message) == message, message
    assert "pydantic" not in message, message


# -- adapters ------------------------------------------------------------------------------------


def adapter_of(settings: bytes, tensors: bytes) -> SurgeryModule | None:
    """The module of an adapter folder of these two files, checked; None where it is refused."""
    with scratch() as folder:
        (folder / CONFIG_FILE).write_bytes(settings)
        (folder / TENSOR_FILE).write_bytes(tensors)
        try:
            module, info = load_adapter(folder)
        except InputError as error:
            said_well(error)
            return None
        shapes = {n: tuple(p.shape) for n, p in module.named_parameters()}
        assert shapes == tensor_shapes(module.config)
        assert all(bool(p.double().isfinite().all()) for p in module.parameters())
        if info.tensors_sha256 is not None:
            assert info.tensors_sha256 == hashlib.sha256(tensors).hexdigest()
        hidden = torch.ones(1, 2, module.config.hidden_size)
        assert module(hidden, torch.tensor([[0, 5]])).shape == hidden.shape
        # Saved again, it is the same adapter.
        save_adapter(module, folder / "again", domain=info.domain, method=info.method)
        again, about = load_adapter(folder / "again")
        assert (again.config, about.domain) == (module.config, info.domain)
        for name, parameter in module.named_parameters():
            assert bits(parameter.detach()) == bits(again.get_parameter(name).detach())
        return module


def bits(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of a tensor: what "bit-equal" compares."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), data


def adapter(data: bytes) -> None:
    """Any ``surgery_config.json`` with any ``surgery.safetensors``."""
    settings, _, tensors = data.partition(SEPARATOR)
    adapter_of(settings, tensors)


# -- states and heads ----------------------------------------------------------------------------


def states_of(data: bytes) -> States | None:
    """The states in a file of these bytes, checked; None where it is refused."""
    with scratch() as folder:
        path = folder / "states.safetensors"
        path.write_bytes(data)
        try:
            states = load_states(path)
        except InputError as error:
            said_well(error)
            return None
        consistent(states.tokens)
        assert len(states.hidden) == len(states.tokens.ids)
        assert states.hidden.is_floating_point()
        if len(states.tokens):
            assert len(states.select([len(states.tokens) - 1]).tokens) == 1
        save_states(states, path)
        assert same_states(load_states(path), states)
        return states


def consistent(tokens: TokenizedPrompts) -> None:
    """Packed sequences whose parts fit each other."""
    count = len(tokens.ids)
    assert sum(tokens.lengths()) == count
    assert int(tokens.offsets[-1]) == count
    for text in TEXTS:
        assert tokens.mask(text).shape == (count,)
    assert tokens.positions().shape == tokens.targets().shape == (count,)


def same_states(a: States, b: States) -> bool:
    """Bit-equal in every part."""
    parts = [
        (s.hidden, s.tokens.ids, s.tokens.offsets, s.tokens.response_starts, s.entropies)
        for s in (a, b)
    ]
    alike = all(
        x is y if x is None or y is None else bits(x) == bits(y)
        for x, y in zip(*parts, strict=True)
    )
    facts = [(s.model, s.batch_size, s.tokens.cut) for s in (a, b)]
    return alike and facts[0] == facts[1]


def states(data: bytes) -> None:
    """Any bytes as a states file, and as a head's."""
    states_of(data)
    with scratch() as folder:
        path = folder / "head.safetensors"
        path.write_bytes(data)
        try:
            head = load_head(path)
        except InputError as error:
            said_well(error)
            return
        assert head.logits(torch.zeros(1, head.weight.shape[1])).shape == (1, head.vocabulary)
        save_head(head, path)
        again = load_head(path)
        assert bits(again.weight) == bits(head.weight)
        assert (again.scale, again.softcap) == (head.scale, head.softcap)


# -- other people's weights ------------------------------------------------------------------------


def gguf(data: bytes) -> None:
    """Any bytes as a GGUF file."""
    with scratch() as folder:
        path = folder / "m.gguf"
        path.write_bytes(data)
        try:
            header = read_gguf(path)
            assert all(t.start + t.size <= len(data) for t in header.tensors.values())
            assert len(header.tokens) <= len(data)
            found = gguf_checkpoint(path, "base")
            assert found.config["model_type"] == found.model_type
        except InputError as error:
            said_well(error)


def checkpoint(data: bytes) -> None:
    """Any ``config.json`` with any ``model.safetensors`` and maybe an index."""
    parts = data.split(SEPARATOR)
    with scratch() as folder:
        names = ("config.json", "model.safetensors", "model.safetensors.index.json")
        for name, content in zip(names, parts, strict=False):
            (folder / name).write_bytes(content)
        try:
            found = read_checkpoint(folder)
            expected_tensors(found.config)
        except InputError as error:
            said_well(error)


@cache
def _base_of_loras() -> Checkpoint:
    shapes = {"model.layers.0.self_attn.q_proj.weight": (4, 4), "model.embed_tokens.weight": (8, 4)}
    tensors = {name: TensorInfo("F32", shape, Path("x")) for name, shape in shapes.items()}
    return Checkpoint("base", Path("x"), {"model_type": "llama"}, tensors, aliases=("base",))


def lora(data: bytes) -> None:
    """Any ``adapter_config.json`` with any ``adapter_model.safetensors``."""
    config, _, tensors = data.partition(SEPARATOR)
    with scratch() as folder:
        (folder / "adapter_config.json").write_bytes(config)
        (folder / "adapter_model.safetensors").write_bytes(tensors)
        try:
            found = read_lora(folder)
            assert found is not None
            check_lora(found, _base_of_loras(), "math")
        except InputError as error:
            said_well(error)


# -- recipes and merge configurations ------------------------------------------------------------


def dumped(recipe: Recipe) -> str:
    """A recipe written out in full, as YAML."""
    document = json.loads(recipe.model_dump_json())
    return yaml.safe_dump(document, allow_unicode=True, sort_keys=False)


def recipe_of(text: str) -> Recipe | None:
    """The recipe of a text, checked; None where it is refused."""
    try:
        found = parse_recipe(text, Path("/r"), "R.yaml")
    except InputError as error:
        said_well(error, "R.yaml")
        return None
    assert found.methods()
    again = parse_recipe(dumped(found), Path("/elsewhere"), "R.yaml")
    # As JSON: NaN, which mergekit may be left to refuse, is not equal to itself.
    assert again.model_dump_json() == found.model_dump_json()
    assert [m.id for m in again.methods()] == [m.id for m in found.methods()]
    return found


def recipe(data: bytes) -> None:
    """Any bytes as a recipe file."""
    with scratch() as folder:
        path = folder / "R.yaml"
        path.write_bytes(data)
        try:
            load_recipe(path)
        except InputError as error:
            said_well(error)
            return
    recipe_of(data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n"))


@cache
def _checkpoints() -> tuple[Path, dict[str, Path]]:
    """A folder with three places that look like models, for configurations to name."""
    root = Path(tempfile.mkdtemp(prefix="surgekit-models-"))
    for name in ("base", "math", "code"):
        (root / name).mkdir()
        (root / name / "config.json").write_text("{}")
    return root, {name: root / name for name in ("base", "math", "code")}


@cache
def _merge_method(name: str) -> Any:
    """mergekit's own method of that name, None where it has none."""
    from mergekit import merge_methods

    return {m.spec.name: m for m in merge_methods.registered_methods()}.get(name)


def merge_config_of(text: str) -> dict[str, Any] | None:
    """A merge configuration of a text with all its models resolved; None where it is refused."""
    root, known = _checkpoints()
    try:
        if config_file(text) is not None:
            return None  # a path, and the file system's affair
        config = read_merge_config(text)
        before = repr(config)
        absolute_paths(config, root, ("base", "math", "code"))
        assert repr(config) == before
        with tamed(quiet=True):
            method = _merge_method(config["merge_method"])
            if method is None:
                return None
            check_settings(config, method)  # as before a run, of a configuration nobody has read
            list_experts(config, method, known)
            resolve_models(config, known, root)
            fill_base(config, method, known)
            with mergekit_errors("merge"):
                in_order(config)
        references(config)
        parameters_given(config)
    except InputError as error:
        said_well(error)
        return None
    return config


def merge_config(data: bytes) -> None:
    """Any text as a mergekit configuration."""
    merge_config_of(data.decode(errors="replace"))


# -- prompts -------------------------------------------------------------------------------------


@cache
def small_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte."""
    return tokenizer()


def prompts(data: bytes) -> None:
    """Any bytes as a JSONL file of prompts, then as tokens in every format."""
    with scratch() as folder:
        path = folder / "p.jsonl"
        path.write_bytes(data)
        try:
            found = read_prompts(path)
        except InputError as error:
            said_well(error)
            return
    for format in FORMATS:
        for prompt in found:
            tokens_of(prompt, format)


def tokens_of(prompt: Prompt, format: str) -> TokenizedPrompts | None:
    """A prompt's tokens, whose masks and text are checked; None where the format refuses it."""
    made = small_tokenizer()
    try:
        tokens = tokenize_prompts([prompt], made, format=format, max_length=1 << 20)
    except InputError as error:
        said_well(error)
        return None
    consistent(tokens)
    ids, start = tokens.ids.tolist(), int(tokens.response_starts[0])
    assert 0 < start <= len(ids)
    messages, response = prompt.turns()
    if response is None:
        assert start == len(ids)
    else:
        assert made.decode(ids[start:]) == response + "<|im_end|>"
    if format == "chat":
        own = made.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ids[:start] == list(own)
    elif format == "plain":
        assert ids[:start] == made(prompt.prompt)["input_ids"]
    else:
        assert made.decode(ids[:start]) == f"<{messages[-1]['content']}>"
    return tokens


CHECKS: dict[str, Callable[[bytes], None]] = {
    "adapter": adapter,
    "states": states,
    "recipe": recipe,
    "prompts": prompts,
    "merge": merge_config,
    "gguf": gguf,
    "checkpoint": checkpoint,
    "lora": lora,
}
"""By the name that ``fuzz/`` and its folders use."""
