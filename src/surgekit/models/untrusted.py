"""What a checkpoint from elsewhere may not do: run code, or reach outside its folder.

Weights are read from safetensors, GGUF, or old ``.bin`` files as tensors alone. Code that comes
with a checkpoint runs only where the user asked for it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from surgekit.errors import InputError
from surgekit.files import read_json_object

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# The kinds of PEFT adapters that are tensors and nothing else, and that fold into the weights.
# Others load further models or adapters that their configuration names.
_FOLDABLE = ("LORA", "ADALORA", "LOHA", "LOKR", "IA3", "OFT", "BOFT", "VERA")
_ASKED_FOR = re.compile(r"(?:GLOBAL|Unsupported (?:class|operand|type)) ([A-Za-z_][\w.]*)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^/]")


def refusal(error: BaseException) -> str | None:
    """What to say of an error that is about code; None where it is about something else.

    The libraries' own words advise to switch the protection off, so they are not passed on.
    """
    text = str(error)
    if "weights_only" in text or "eights only load" in text:
        found = _ASKED_FOR.search(text)
        what = f"its pickle asks for {found[1]}" if found else "a damaged file, or code in it"
        return (
            f"the .bin file is not tensors alone ({what}) and nothing of it was run; use a "
            "safetensors version of the model, or write one with save_pretrained where you trust it"
        )
    if "trust_remote_code" in text or "contains custom code" in text:
        return (
            "it needs Python code that comes with the checkpoint, and none was run; if you have "
            "read that code and trust it, pass --trust-remote-code (trust_remote_code=True)"
        )
    return None


def refuse_url(model: str) -> None:
    """Raise InputError where a model is named by an address, which may hold a password."""
    if _URL.match(model):
        raise InputError(
            "expected a folder or a hub id such as owner/name, found an address "
            f"({model.split(':', 1)[0]}:…); log in to the hub instead of writing a token into it"
        )


def check_checkpoint(folder: Path) -> None:
    """Raise InputError where a checkpoint folder reaches outside, or means two models.

    Links are followed where they are honest: inside the folder, to the hub's cache, to a file of
    the same name in another checkpoint, to weights. Any other file is copied along with a merge
    and published, and a link can make it one of the user's own.
    """
    for name in _INDEXES:
        if (folder / name).is_file():
            _check_index(folder / name)
    for path in folder.iterdir():
        if path.is_symlink() and not _is_honest(path, folder):
            raise InputError(
                f"{path}: expected a file of the checkpoint, found a link to another "
                f"({path.readlink()}); put a copy in its place if it belongs there"
            )
    adapters = [f"adapter_model.{end}" for end in ("safetensors", "bin")]
    if (folder / "adapter_config.json").is_file() and any((folder / a).is_file() for a in adapters):
        # transformers would lay the LoRA over the weights, mergekit would not.
        raise InputError(
            f"{folder}: expected a whole model or a LoRA, found both (config.json and "
            "adapter_config.json); move the LoRA to a folder of its own, and write "
            "{model: FOLDER, lora: FOLDER} to use it"
        )


def _is_honest(link: Path, folder: Path) -> bool:
    target = link.resolve()
    return (
        not target.is_file()
        or target.is_relative_to(folder.resolve())
        or target.name == link.name
        or target.suffix == link.suffix in (".safetensors", ".bin", ".gguf")
        or (target.parent.name == "blobs" and target.parent.parent.name.startswith("models--"))
    )


def _check_index(index: Path) -> None:
    shards = read_json_object(index, "an index of weights").get("weight_map")
    for shard in shards.values() if isinstance(shards, dict) else [None]:
        if not isinstance(shard, str) or shard in (".", "..", "") or set(shard) & set("/\\\0"):
            raise InputError(
                f"{index}: expected names of files beside it, found {str(shard)[:80]!r}; "
                "put all weights of the checkpoint into its folder"
            )


def check_peft(config: dict[str, Any], folder: Path) -> None:
    """Raise InputError where a PEFT configuration names code, or models besides its own."""
    kind = config.get("peft_type")
    if kind not in _FOLDABLE:
        raise InputError(
            f"{folder}: expected a LoRA or a kin of it ({', '.join(_FOLDABLE)}), found peft_type "
            f"{str(kind)[:40]!r}; fold it with PEFT and give the whole model"
        )
    if config.get("megatron_config"):
        raise InputError(
            f"{folder}: its megatron_config makes PEFT import a module by name; "
            "take megatron_config out of adapter_config.json"
        )


def check_attention(config: Any, folder: Path) -> None:
    """Raise InputError where a model's configuration asks for attention code from a hub."""
    for part in [config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))]:
        asked = getattr(part, "_attn_implementation", None)
        for name in asked.values() if isinstance(asked, dict) else [asked]:
            if isinstance(name, str) and "/" in name:
                raise InputError(
                    f"{folder}: its configuration asks for attention code from the hub "
                    f"({name[:80]}); take attn_implementation out of config.json, or pass "
                    "--trust-remote-code (trust_remote_code=True) if you trust that code"
                )
