"""Checkpoints by their headers: what is true of them is read, what is damaged is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from surgekit.errors import InputError
from surgekit.models import values
from surgekit.models.checkpoint import Checkpoint, read_checkpoint
from surgekit.models.compatibility import check_model
from surgekit.models.gguf_header import gguf_checkpoint, read_gguf
from surgekit.models.loading import load_model
from surgekit.models.values import distance, same_values, scan_values
from surgekit.models.vocabulary import compare_ids, gguf_vocabulary, read_vocabulary

from .sources import edit
from .tiny import TEMPLATE, VOCABULARY, checkpoint, llama, shifted

INDEX = "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("model") / "model", llama(1, dtype=torch.bfloat16))


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(model, tmp_path / "copy"))


def weights(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def rewrite(folder: Path, **changes: torch.Tensor | None) -> Path:
    """Change tensors of a folder (None: without); dots are written as double underscores."""
    found = weights(folder)
    for key, value in changes.items():
        name = key.replace("__", ".")
        found.pop(name, None)
        if value is not None:
            found[name] = value
    save_file(found, folder / "model.safetensors", {"format": "pt"})
    return folder


def shard(folder: Path, count: int = 2, suffix: str = "safetensors") -> list[Path]:
    """Split a folder's weights into shards with an index."""
    found = weights(folder)
    (folder / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = [f"{stem}-{i + 1:05d}-of-{count:05d}.{suffix}" for i in range(count)]
    placed = {name: names[i % count] for i, name in enumerate(sorted(found))}
    for file in names:
        part = {n: found[n] for n, f in placed.items() if f == file}
        if suffix == "safetensors":
            save_file(part, folder / file, {"format": "pt"})
        else:
            torch.save(part, folder / file)
    index = {"metadata": {}, "weight_map": placed}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return [folder / name for name in names]


def shapes(found: Checkpoint) -> dict[str, tuple[int, ...]]:
    return {n: i.shape for n, i in found.tensors.items()}


# --- what is there is read ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["whole", "sharded", "bin", "sharded bin"])
def test_every_form_says_the_same(form: str, folder: Path) -> None:
    tensors = weights(folder)
    if form == "sharded":
        shard(folder, 3)
    elif form == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    elif form == "sharded bin":
        shard(folder, 2, "bin")
    found = read_checkpoint(folder)
    assert shapes(found) == {n: tuple(t.shape) for n, t in tensors.items()}
    assert {i.dtype for i in found.tensors.values()} == {"BF16"}
    assert found.remarks == found.unverified == ()
    assert found.config["hidden_size"] == 32
    assert scan_values(found).bad == ()
    assert check_model(found, read_vocabulary(folder)) == []


def test_a_bin_of_the_old_form_is_not_verified(folder: Path) -> None:
    torch.save(weights(folder), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()
    found = read_checkpoint(folder)
    assert not found.tensors
    assert "pytorch_model.bin" in found.unverified[0]
    assert scan_values(found).unread == found.unverified
    (finding,) = [f for f in check_model(found) if f.level == "unverified"]
    assert "safetensors version" in finding.message


class Touch:
    """A pickle that leaves a file behind when it is run."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def test_code_in_a_bin_is_not_run(folder: Path, tmp_path: Path) -> None:
    torch.save({"a": Touch(tmp_path / "run")}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="not tensors alone") as caught:
        read_checkpoint(folder)
    assert "damaged (" not in str(caught.value)
    assert not (tmp_path / "run").exists()


# --- what is damaged is named -------------------------------------------------------------------


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def lying(folder: Path) -> None:
    """A header that promises more than there is."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"shape":[320,32]', b'"shape":[640,32]', 1))


def pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (folder / "model.safetensors").write_text(text)


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def without_shard(folder: Path) -> None:
    shard(folder, 3)[1].unlink()


def truncated_shard(folder: Path) -> None:
    file = shard(folder)[1]
    file.write_bytes(file.read_bytes()[:-1])


def twice(folder: Path) -> None:
    one, other = shard(folder)
    save_file(load_file(one) | load_file(other), other, {"format": "pt"})


def elsewhere(folder: Path) -> None:
    one, other = shard(folder)
    index = json.loads((folder / INDEX).read_text())
    moved = {n: other.name if f == one.name else one.name for n, f in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps({"weight_map": moved}))


def short_of_one(folder: Path) -> None:
    file = shard(folder)[0]
    found = load_file(file)
    found.pop(sorted(found)[0])
    save_file(found, file, {"format": "pt"})


def both(folder: Path) -> None:
    found = weights(folder)
    shard(folder)
    save_file(found, folder / "model.safetensors", {"format": "pt"})


def no_map(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": []}))


def no_index(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).unlink()


def truncated_bin(folder: Path) -> None:
    torch.save(weights(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-500])


DAMAGE: list[tuple[Callable[[Path], Any], str]] = [
    (truncated, "model.safetensors: truncated or damaged"),
    (lying, "model.safetensors: truncated or damaged"),
    (pointer, "a pointer of Git LFS, not the weights; run git lfs pull"),
    (empty, "model.safetensors: truncated or damaged"),
    (without_shard, "1 of 3 files of weights are missing, e.g. model-00002-of-00003.safetensors"),
    (truncated_shard, "model-00002-of-00002.safetensors: truncated or damaged"),
    (twice, "lm_head.weight lies in model-00001.* and in model-00002.*: expected each weight once"),
    (elsewhere, "by the index lm_head.weight lies in model-00002.* and it lies in model-00001"),
    (short_of_one, "1 weights of the index are in no file, e.g. lm_head.weight"),
    (both, "expected one set of weights, found model.safetensors and an index of 2 other files"),
    (no_map, "expected a weight_map from weights to files"),
    (no_index, "found model-00001-of-00002.safetensors, model-00002.* and no index of them"),
    (truncated_bin, "pytorch_model.bin: truncated or damaged"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE, ids=[d.__name__ for d, _ in DAMAGE])
def test_damage_is_named(damage: Callable[[Path], Any], said: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(InputError, match=said.replace(": expected each", "; expected each")) as e:
        read_checkpoint(folder)
    assert len(str(e.value).splitlines()) == 1


def test_old_shards_and_unlisted_weights_are_remarked(folder: Path) -> None:
    one, _ = shard(folder)
    save_file(load_file(one) | {"left.over": torch.ones(2)}, one, {"format": "pt"})
    (folder / "model-00003-of-00003.safetensors").write_bytes(one.read_bytes())
    remarks = read_checkpoint(folder).remarks
    assert "1 weights in the files are not in the index and are not read, e.g. left.over" in remarks
    assert any(
        r.startswith("model-00003-of-00003.safetensors is not in the index") for r in remarks
    )
    assert {f.level for f in check_model(read_checkpoint(folder))} == {"warning"}


# --- weights, configuration and tokenizer -------------------------------------------------------

ITSELF: list[tuple[Callable[[Path], Any], str, str]] = [
    (
        lambda f: rewrite(f, model__layers__1__mlp__up_proj__weight=None),
        "error",
        "1 weights that config.json asks for are not in the files, e.g. model.layers.1.mlp.up_proj",
    ),
    (lambda f: rewrite(f, lm_head__weight=None), "error", "e.g. lm_head.weight"),
    (
        lambda f: edit(f / "config.json", intermediate_size=64),
        "error",
        "mlp.gate_proj.weight should be (64, 32) by its config.json, found (48, 32)",
    ),
    (lambda f: edit(f / "config.json", num_hidden_layers=3), "error", "9 weights that config.json"),
    (
        lambda f: edit(f / "config.json", eos_token_id=[258, 400]),
        "warning",
        "eos_token_id 400 of config.json is beyond the embedding's 320 rows",
    ),
    (
        lambda f: edit(f / "config.json", model_type="unheard-of"),
        "unverified",
        "weights against config.json (transformers knows no such model",
    ),
    (
        lambda f: edit(f / "config.json", auto_map={"AutoModelForCausalLM": "modeling.M"}),
        "unverified",
        "weights against config.json (its code comes with it)",
    ),
]


@pytest.mark.parametrize(("change", "level", "said"), ITSELF)
def test_a_model_against_its_configuration(
    change: Callable[[Path], Any], level: str, said: str, folder: Path
) -> None:
    change(folder)
    found = check_model(read_checkpoint(folder), read_vocabulary(folder))
    assert any(f.level == level and said in f.message for f in found), found


def test_old_buffers_and_tied_heads_are_no_fault(folder: Path, tmp_path: Path) -> None:
    rewrite(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4))
    assert check_model(read_checkpoint(folder)) == []
    tied = checkpoint(tmp_path / "tied", llama(1, tie_word_embeddings=True))
    assert "lm_head.weight" not in read_checkpoint(tied).tensors
    assert check_model(read_checkpoint(tied)) == []


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8},
    "phi3": {"num_key_value_heads": 2},
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": {},
    "gpt2": {},
    "olmo2": {"num_key_value_heads": 2},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_is_accused(family: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 64}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **(sizes | FAMILIES[family]))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / family)
    found = read_checkpoint(tmp_path / family)
    assert [f for f in check_model(found) if f.level != "unverified"] == []
    assert bool(check_model(found)) == (family in ("mixtral", "gpt_neox"))  # stored by other names
    load_model(tmp_path / family)


# --- vocabularies -------------------------------------------------------------------------------


def test_a_vocabulary_by_its_file(model: Path) -> None:
    found = read_vocabulary(model)
    assert found is not None
    assert (len(found.ids), found.ids["<|im_end|>"]) == (259, 258)
    assert set(found.added) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert (found.eos, found.pad, found.template) == ("<|im_end|>", "<|im_end|>", TEMPLATE)


def test_tokens_beyond_the_embedding(folder: Path) -> None:
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    document["added_tokens"].append({"id": VOCABULARY, "content": "[PAD]", "special": True})
    file.write_text(json.dumps(document))
    (error,) = check_model(read_checkpoint(folder), read_vocabulary(folder))
    assert error.level == "error"
    assert "token '[PAD]' has id 320, and the embedding has 320 rows" in error.message
    edit(folder / "tokenizer_config.json", pad_token="[PAD]")
    (warning,) = check_model(read_checkpoint(folder), read_vocabulary(folder))
    assert warning.level == "warning"
    assert "it only pads" in warning.message


def test_ids_that_mean_something_else(folder: Path, model: Path) -> None:
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())
    vocabulary = document["model"]["vocab"]
    swapped = {"a": vocabulary["b"], "b": vocabulary["a"]}
    document["model"]["vocab"] = vocabulary | swapped
    document["added_tokens"].append({"id": 259, "content": "<tool>", "special": True})
    file.write_text(json.dumps(document))
    one, two = read_vocabulary(model), read_vocabulary(folder)
    assert one is not None
    assert two is not None
    found = compare_ids(one, two)
    assert (found.common, found.differing, found.surplus) == (259, 2, ("<tool>",))
    assert found.example == (vocabulary["a"], "a", "b")
    assert not found.other_tokenizer


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"model": {"vocab": 3}}',
        '{"model": {"vocab": {"a": "b"}}}',
        '{"model": {"vocab": [[]]}}',
        '{"model": {"vocab": {}}, "added_tokens": [{"content": "a", "id": null}]}',
    ],
)
def test_a_tokenizer_file_without_ids(text: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=r"tokenizer\.json: expected a (number|tokenizer)"):
        read_vocabulary(folder)


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_one_bad_value_anywhere_is_found(
    value: float, form: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "_PIECE", 100)  # so that there are pieces to forget
    found = weights(folder)
    name = "model.layers.1.self_attn.o_proj.weight"
    found[name][-1, -1] = value
    if form == "bin":
        torch.save(found, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    else:
        save_file(found, folder / "model.safetensors", {"format": "pt"})
    assert scan_values(read_checkpoint(folder)).bad == (name,)


def test_values_are_read_in_pieces(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_PIECE", 512)
    sizes: list[int] = []

    def watched(piece: torch.Tensor) -> bool:
        sizes.append(piece.numel())
        return True

    monkeypatch.setattr(values, "_finite", watched)
    scan_values(read_checkpoint(model))
    assert sum(sizes) == sum(t.numel() for t in weights(model).values())
    assert max(sizes) <= 512


def test_the_distance_of_fine_tunes_and_of_strangers(tmp_path: Path) -> None:
    """Noise of a share s stands at s; models that share nothing at √(1 + ratio²)."""
    base = llama(1)
    made = {
        "base": base,
        "near": shifted(base, 2, 0.05),
        "far": shifted(base, 3, 0.5),
        "stranger": llama(7),
        "small": llama(8, initializer_range=0.02),
        "copy": base,
    }
    read = {n: read_checkpoint(checkpoint(tmp_path / n, m)) for n, m in made.items()}
    found = {n: distance(read["base"], read[n]) for n in read}
    relative = {n: d.relative for n, d in found.items() if d is not None}
    assert relative["near"] == pytest.approx(0.05, rel=0.05)
    assert relative["far"] == pytest.approx(0.5, rel=0.05)
    assert relative["stranger"] == pytest.approx(2**0.5, rel=0.05)
    assert relative["small"] == pytest.approx((1 + 0.01) ** 0.5, rel=0.05)
    assert relative["copy"] == 0
    assert [n for n, d in found.items() if d is not None and d.equal] == ["base", "copy"]
    assert same_values(read["base"], read["copy"])
    assert not same_values(read["base"], read["near"])


def test_one_value_makes_another_model(folder: Path, model: Path) -> None:
    found = weights(folder)
    found["lm_head.weight"][-1, -1] += 1
    save_file(found, folder / "model.safetensors", {"format": "pt"})
    assert not same_values(read_checkpoint(model), read_checkpoint(folder))


# --- GGUF ---------------------------------------------------------------------------------------

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
BLOCKS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A tiny llama as GGUF, one tensor in each kind of block that the package can write."""
    path = tmp_path / "tiny-llama.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("Tiny Llama")
    for key, value in {
        "context_length": 64,
        "block_count": 1,
        "embedding_length": 32,
        "feed_forward_length": 64,
    }.items():
        getattr(writer, f"add_{key}")(value)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["<s>", "</s>", "a", "ü"])
    writer.add_eos_token_id(1)
    writer.add_array("some.numbers", [1, 2, 3])
    generator = np.random.default_rng(0)
    for i, kind in enumerate(KINDS):
        quantization = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(generator.normal(size=(4, 32)).astype(np.float32), quantization)
        name = "token_embd.weight" if i == 0 else f"blk.0.part_{kind}.weight"
        writer.add_tensor(name, data, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_header_is_as_the_gguf_package_reads_it(packed: Path) -> None:
    found, theirs = read_gguf(packed), gguf.GGUFReader(packed)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert found.fields[key] == field.contents(), key
    assert set(found.tensors) == {t.name for t in theirs.tensors}
    for tensor in theirs.tensors:
        mine = found.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert (mine.start, mine.size) == (tensor.data_offset, tensor.n_bytes)
        assert mine.type == tensor.tensor_type.name
    assert found.tokens == {"<s>": 0, "</s>": 1, "a": 2, "ü": 3}
    assert gguf_vocabulary(packed).eos == "</s>"


def test_a_gguf_file_as_the_checkpoint_it_becomes(packed: Path) -> None:
    found = gguf_checkpoint(packed, "base")
    assert found.config["num_hidden_layers"] == 1
    assert found.config["architectures"] == ["LlamaForCausalLM"]
    assert found.config["vocab_size"] == 4
    assert shapes(found)["model.layers.0.mlp.up_proj.weight"] == (64, 32)
    assert "Tiny Llama" in found.aliases
    assert scan_values(found).bad == ()


@pytest.mark.parametrize("keep", [0, 3, 30, 200, -64, -500])
def test_a_truncated_gguf_file(keep: int, packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:keep] if keep else b"not a GGUF file")
    with pytest.raises(InputError, match=r"truncated or damaged GGUF file|expected a GGUF file"):
        read_gguf(packed)


def test_no_byte_of_a_gguf_header_breaks_more_than_the_file(packed: Path) -> None:
    """Whatever a header says, it is read or refused."""
    data = packed.read_bytes()
    generator = np.random.default_rng(1)
    end = read_gguf(packed).tensors["token_embd.weight"].start
    refused = 0
    for at in generator.choice(end, 300, replace=False):
        spoilt = bytearray(data)
        spoilt[at] = generator.choice([0, 1, 9, 127, 255])
        packed.write_bytes(spoilt)
        try:
            gguf_vocabulary(packed)
        except InputError:
            refused += 1
    assert 50 < refused < 300


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_factor_in_a_gguf_block_is_found(kind: str, packed: Path) -> None:
    header = read_gguf(packed)
    (name,) = [n for n, t in header.tensors.items() if t.type == kind]
    tensor = header.tensors[name]
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    wide = {"F32": b"\x00\x00\xc0\x7f", "BF16": b"\xc0\x7f"}.get(kind, b"\x00\x7e")
    data = bytearray(packed.read_bytes())
    last = tensor.start + tensor.size - size
    data[last : last + len(wide)] = wide
    packed.write_bytes(data)
    assert scan_values(gguf_checkpoint(packed, "base")).bad == (name,)


@pytest.mark.parametrize("kind", [*KINDS[3:], *BLOCKS])
def test_factors_stand_where_the_gguf_package_looks_for_them(kind: str) -> None:
    """NaN in any factor shows when the package unpacks a block; in the rest it never does."""
    quantization = gguf.GGMLQuantizationType[kind]
    _, size = gguf.GGML_QUANT_SIZES[quantization]
    for at in values.FACTORS[kind]:
        block = np.full(size, 17, np.uint8)
        for place in values.FACTORS[kind]:
            block[place : place + 2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
        assert np.isfinite(gguf.quants.dequantize(block[None], quantization)).all()
        block[at : at + 2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
        assert not np.isfinite(gguf.quants.dequantize(block[None], quantization)).all()
    generator = np.random.default_rng(0)
    for _ in range(20):
        block = generator.integers(0, 256, size).astype(np.uint8)
        for place in values.FACTORS[kind]:
            block[place : place + 2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
        assert np.isfinite(gguf.quants.dequantize(block[None], quantization)).all()
