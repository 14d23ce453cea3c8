"""Where a model comes from: a folder, a hub id, a GGUF file, a package, or base + LoRA."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from surgekit.errors import InputError
from surgekit.files import read_json_object, user_path
from surgekit.models.untrusted import check_checkpoint, check_peft, refuse_url
from surgekit.parsing import first_problem

_ADAPTER_FILE = "adapter_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.json",
)


class ModelSource(BaseModel):
    """One model, named by exactly one of ``model``, ``gguf``, ``package``, plus optionally a LoRA.

    Attributes:
        model: a folder with a transformers checkpoint, or a hub id (``owner/name``).
        revision: branch, tag or commit of a hub id.
        gguf: a ``.gguf`` file; its tokenizer and chat template are read from it too.
        package: an installed Python package that carries one ``.gguf`` file.
        lora: a PEFT adapter folder laid over the model; alone, it lies over the recipe's base.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = None
    revision: str | None = None
    gguf: str | None = None
    package: str | None = None
    lora: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, (str, Path)):
            text = str(value)
            return {"gguf": text} if text.endswith(".gguf") else {"model": text}
        if not isinstance(value, (dict, ModelSource)):
            raise ValueError(
                "expected a folder, a hub id, {model: FOLDER}, {lora: FOLDER}, {gguf: FILE} or "
                "{package: NAME}"
            )
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> ModelSource:
        named = [k for k in ("model", "gguf", "package") if getattr(self, k) is not None]
        if len(named) > 1:
            raise ValueError(f"give one of model, gguf, package; found {' and '.join(named)}")
        if not named and self.lora is None:
            raise ValueError("give one of model, gguf, package or lora; found none")
        if self.revision is not None and self.model is None:
            raise ValueError("revision goes with model (a hub id)")
        for text in (self.model, self.gguf, self.lora):
            if text is not None:
                try:
                    refuse_url(text)
                    user_path(text)
                except InputError as error:
                    raise ValueError(str(error)) from error
        return self

    @classmethod
    def parse(cls, value: ModelSource | str | Path | dict[str, Any]) -> ModelSource:
        """Turn a path, hub id or mapping into a source; raises InputError on anything else."""
        if isinstance(value, ModelSource):
            return value
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise InputError(f"not a model source: {first_problem(error, value, cls)}") from error

    @property
    def needs_base(self) -> bool:
        """True for a LoRA that names no model of its own to lie on."""
        return self.model is None and self.gguf is None and self.package is None

    def over(self, base: ModelSource) -> ModelSource:
        """This source with its missing base filled in; raises InputError where that is a LoRA."""
        if not self.needs_base:
            return self
        if base.lora is not None:
            raise InputError(
                f"LoRA {self.lora} cannot lie on {base.describe()}, which has a LoRA already; "
                "write that base out as one checkpoint first"
            )
        return base.model_copy(update={"lora": self.lora})

    def relative_to(self, folder: Path) -> ModelSource:
        """Paths resolved against ``folder``; hub ids are left alone."""
        updates: dict[str, str] = {}
        for key in ("gguf", "lora"):
            text = getattr(self, key)
            if text is not None:
                updates[key] = str((folder / user_path(text)).resolve())
        if self.model is not None and (
            (folder / user_path(self.model)).exists() or _looks_like_path(self.model)
        ):
            updates["model"] = str((folder / user_path(self.model)).resolve())
        return self.model_copy(update=updates)

    def describe(self) -> str:
        """One line for messages and cards."""
        root = self.model or self.gguf or (self.package and f"package {self.package}") or "base"
        return f"{root} + LoRA {self.lora}" if self.lora else root


def lora_config(folder: Path) -> dict[str, Any]:
    """The configuration of a PEFT adapter folder; raises InputError where there is none.

    So it does where that configuration asks for more than tensors that fold into the weights.
    """
    path = folder / _ADAPTER_FILE
    if not path.is_file():
        raise InputError(f"{folder}: expected a PEFT adapter folder, found no {_ADAPTER_FILE}")
    config = read_json_object(path, "a PEFT configuration")
    check_peft(config, folder)
    return config


def is_lora_folder(folder: Path) -> bool:
    """True for a folder with a PEFT adapter and no model of its own."""
    return (folder / _ADAPTER_FILE).is_file() and not (folder / "config.json").is_file()


def split_lora_folder(source: ModelSource) -> ModelSource:
    """Read a bare PEFT folder as base + LoRA, the base being the one its config names."""
    if source.model is None or source.lora is not None:
        return source
    folder = user_path(source.model)
    if not is_lora_folder(folder):
        return source
    base = lora_config(folder).get("base_model_name_or_path")
    if not base:
        raise InputError(
            f"{source.model} is a LoRA adapter whose {_ADAPTER_FILE} names no base model; "
            "give it with --base, or in a recipe as {model: BASE, lora: FOLDER}"
        )
    return ModelSource.parse({"model": base, "lora": source.model})


def gguf_path(source: ModelSource) -> Path | None:
    """The GGUF file of a ``gguf`` or ``package`` source, else None."""
    if source.gguf is not None:
        path = user_path(source.gguf)
        if not path.is_file():
            raise InputError(f"GGUF file not found: {path}")
        return path
    if source.package is not None:
        try:
            spec = importlib.util.find_spec(source.package.replace("-", "_"))
        except (ImportError, ValueError):  # a dotted name whose parent is not there
            spec = None
        if spec is None:
            raise InputError(
                f"package {source.package!r} is not installed; install the one that carries the "
                "model, or give {gguf: FILE}"
            )
        places = spec.submodule_search_locations or ()  # a module that is one file has none
        files = sorted(f for root in places for f in Path(root).glob("*.gguf"))
        if len(files) != 1:
            raise InputError(
                f"package {source.package!r}: expected one .gguf file, found {len(files)}"
            )
        return files[0]
    return None


def resolve_folder(model: str, revision: str | None = None) -> Path:
    """The local folder of a checkpoint: the folder itself, or a hub id's snapshot in the cache.

    The hub is asked only for what the local cache lacks; with ``HF_HUB_OFFLINE=1`` the cache
    alone is used.

    Raises:
        InputError: no such folder, or the id is neither cached nor reachable.
    """
    folder = user_path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"{folder}: expected a model folder, found no config.json in it")
        check_checkpoint(folder)
        return folder
    refuse_url(model)
    if folder.exists() or _looks_like_path(model):
        found = "a file" if folder.exists() else "nothing"
        raise InputError(f"model folder expected at {folder}, found {found}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                model,
                revision=revision,
                ignore_patterns=["*.gguf", "*.onnx", "*.msgpack", "*.h5", "*.pth", "original/*"],
            )
        )
        check_checkpoint(folder)
        return folder
    except HFValidationError as error:
        raise InputError(f"{model!r} is neither a folder nor a hub id (owner/name)") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InputError(
            f"{model!r} is no local folder, and as a hub id it is neither in the local cache nor "
            f"could it be fetched ({type(error).__name__}); give a folder, or log in and go online"
        ) from error


def cached_folder(model: str, revision: str | None = None) -> Path | None:
    """The same without asking the hub: None for an id that has to be fetched.

    Raises:
        InputError: no such folder, or an id that is not cached while ``HF_HUB_OFFLINE`` is set.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    folder = user_path(model)
    if folder.exists() or _looks_like_path(model) or constants.HF_HUB_OFFLINE:
        return resolve_folder(model, revision)
    refuse_url(model)
    try:
        folder = Path(snapshot_download(model, revision=revision, local_files_only=True))
    except HFValidationError as error:
        raise InputError(f"{model!r} is neither a folder nor a hub id (owner/name)") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        return None
    if not (folder / "config.json").is_file():
        return None
    check_checkpoint(folder)
    return folder


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or "\\" in text
