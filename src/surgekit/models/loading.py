"""Loading models and tokenizers, and writing a source out as a plain checkpoint folder."""

from __future__ import annotations

import io
import logging
import pickle
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from surgekit.errors import InputError, NotFiniteError
from surgekit.files import read_json_object, user_path
from surgekit.models.checkpoint import read_checkpoint, read_config
from surgekit.models.devices import check_device
from surgekit.models.gguf_header import read_gguf
from surgekit.models.lora_header import read_lora
from surgekit.models.source import (
    TOKENIZER_FILES,
    ModelSource,
    gguf_path,
    lora_config,
    resolve_folder,
    split_lora_folder,
)
from surgekit.models.untrusted import check_attention, refusal
from surgekit.parsing import nearest

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}

_SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate's ways
_COMPUTED = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

SourceLike = ModelSource | str | Path | dict[str, Any]


def parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """``"bfloat16"`` → ``torch.bfloat16``; None and ``"auto"`` stay open (the checkpoint's own)."""
    if dtype is None or dtype == "auto" or isinstance(dtype, torch.dtype):
        return None if dtype == "auto" else cast("torch.dtype | None", dtype)
    if dtype not in DTYPES:
        hint = nearest(dtype, DTYPES)
        raise InputError(f"unknown dtype {dtype!r}; use one of {', '.join(DTYPES)}, auto{hint}")
    return DTYPES[dtype]


def load_model(
    source: SourceLike,
    *,
    base: SourceLike | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a causal language model for inference, whatever form it is stored in.

    Args:
        source: folder, hub id, ``.gguf`` file, or a ModelSource (see there for packages, LoRA).
        base: what a bare LoRA lies on.
        dtype: of the weights; None keeps the checkpoint's (bfloat16 for GGUF).
        device: ``"cpu"`` by default; ``"auto"`` spreads over what there is (accelerate).
        trust_remote_code: run Python code that comes with the checkpoint. Off unless asked for.

    Returns:
        A ``PreTrainedModel`` in eval mode, without gradients; a LoRA is folded into the weights
        (computed in float32, rounded once).

    Raises:
        InputError: the source does not exist, is no causal language model, or is damaged.
        NotFiniteError: a weight is NaN or infinite.
    """
    source = _complete(source, base)
    target = parse_dtype(dtype)
    if isinstance(device, str) and device not in _SPREADS:
        check_device(device)
    model = _load_plain(source, None if source.lora else target, device, trust_remote_code)
    if source.lora is not None:
        model = _fold_lora(model, user_path(source.lora), target)
    _expect_finite(model, source.describe())
    model.eval()
    model.requires_grad_(False)
    return model


def _expect_finite(model: nn.Module, name: str) -> None:
    """Refuse a model with NaN or infinity in a weight; one that no prompt uses is found too."""
    for key, tensor in model.named_parameters():
        # Offloaded weights are not here; float8 and integers hold no infinity to find this way.
        if tensor.is_meta or tensor.dtype not in _COMPUTED or tensor.numel() == 0:
            continue
        low, high = torch.aminmax(tensor.detach())
        if not (bool(low.isfinite()) and bool(high.isfinite())):
            raise NotFiniteError(
                f"{name}: weight {key} holds NaN or infinity; the checkpoint is damaged, or its "
                f"values are too large for {str(tensor.dtype).removeprefix('torch.')}"
            )


def load_tokenizer(
    source: SourceLike, *, base: SourceLike | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a source, chat template included (a LoRA uses its base's)."""
    source = _complete(source, base)
    gguf = gguf_path(source)
    with _quiet_transformers(), _as_input_error(f"tokenizer of {source.describe()}"):
        if gguf is not None:
            read_gguf(gguf)
            return AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        folder = resolve_folder(cast(str, source.model), source.revision)
        # transformers looks into these, and says less of what is wrong.
        read_config(folder)
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise InputError(
                f"{folder}: expected a tokenizer, found no tokenizer.json nor any other; copy the "
                "tokenizer files of its base model into it"
            )
        for name in ("tokenizer_config.json", "tokenizer.json"):
            if (folder / name).is_file():
                read_json_object(folder / name, "a tokenizer")
        return AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=trust_remote_code, local_files_only=True
        )


def has_tokenizer(source: SourceLike, *, base: SourceLike | None = None) -> bool:
    """False for a checkpoint folder that brings no tokenizer of its own."""
    source = _complete(source, base)
    if gguf_path(source) is not None:
        return True
    folder = resolve_folder(cast(str, source.model), source.revision)
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def save_checkpoint(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Write weights (safetensors), configs, tokenizer and chat template into ``folder``."""
    with _quiet_transformers():
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))


def materialize(
    source: SourceLike,
    folder: Path,
    *,
    base: SourceLike | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Write a source as a plain checkpoint, for tools that read nothing but folders."""
    source = _complete(source, base)
    model = load_model(source, dtype=dtype, trust_remote_code=trust_remote_code)
    save_checkpoint(model, load_tokenizer(source, trust_remote_code=trust_remote_code), folder)


def is_plain_folder(source: ModelSource) -> bool:
    """True where the source is a checkpoint folder or a hub id already: nothing to write out."""
    source = split_lora_folder(source)
    return source.model is not None and source.lora is None


def _complete(source: SourceLike, base: SourceLike | None) -> ModelSource:
    source = split_lora_folder(ModelSource.parse(source))
    if source.needs_base:
        if base is None:
            raise InputError(f"LoRA {source.lora} needs a base model; pass base=")
        source = source.over(ModelSource.parse(base))
    return source


def _load_plain(
    source: ModelSource,
    dtype: torch.dtype | None,
    device: str | torch.device | None,
    trust_remote_code: bool,
) -> PreTrainedModel:
    gguf = gguf_path(source)
    placing: dict[str, Any] = {} if device is None else {"device_map": device}
    with _quiet_transformers(), _as_input_error(source.describe()):
        if gguf is not None:
            from transformers import GgufConfig

            read_gguf(gguf)
            return AutoModelForCausalLM.from_pretrained(
                str(gguf.parent),
                gguf_file=gguf.name,
                # Packed GGUF blocks can neither be merged nor saved; unpack them at load time.
                quantization_config=GgufConfig(dequantize=True),
                dtype=dtype or torch.bfloat16,
                **placing,
            )
        folder = resolve_folder(cast(str, source.model), source.revision)
        read_checkpoint(folder)  # names the file that is missing or damaged
        config = AutoConfig.from_pretrained(
            str(folder), trust_remote_code=trust_remote_code, local_files_only=True
        )
        if not trust_remote_code:
            check_attention(config, folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype or "auto",
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with the sizes in the message
            **placing,
        )
        model, report = loaded
    # transformers fills missing weights with random numbers and only logs it.
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise InputError(
            f"{folder}: {len(missing)} weights are missing, e.g. {missing[0]}; "
            "is the checkpoint complete and a causal language model?"
        )
    if report["mismatched_keys"]:
        name, found, expected = sorted(report["mismatched_keys"])[0]
        raise InputError(
            f"{folder}: {name} should be {tuple(expected)} by its config.json, "
            f"found {tuple(found)}; do weights and configuration belong together?"
        )
    return model


def _fold_lora(model: PreTrainedModel, lora: Path, dtype: torch.dtype | None) -> PreTrainedModel:
    try:
        from peft import PeftModel
    except ImportError as error:
        raise InputError("LoRA experts need peft: pip install 'surgekit[lora]'") from error
    lora_config(lora)
    read_lora(lora)  # names what is missing or damaged
    target = dtype or model.dtype
    dense = not getattr(model, "is_quantized", False)
    if dense:
        model = cast(PreTrainedModel, model.to(torch.float32))  # pyright: ignore[reportArgumentType]
    with _quiet_transformers(), _as_input_error(f"LoRA {lora}"), warnings.catch_warnings():
        # PEFT only warns of adapter keys that fit nothing: an adapter of another model.
        warnings.filterwarnings("error", message="Found missing adapter keys")
        # PEFT asks transformers for a property by its old name.
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing", FutureWarning)
        try:
            peft_model = PeftModel.from_pretrained(cast(nn.Module, model), str(lora))
        except UserWarning as warning:
            raise InputError(f"LoRA {lora} does not fit {model.name_or_path}: {warning}") from None
        # Of keys that the model has no place for PEFT says nothing, but it reports them here.
        surplus = peft_model.load_adapter(str(lora), "default").unexpected_keys
        if surplus:
            raise InputError(
                f"LoRA {lora} does not fit {model.name_or_path}: {len(surplus)} of its weights "
                f"have no place there, e.g. {surplus[0]}"
            )
        merged = cast(PreTrainedModel, peft_model.merge_and_unload(safe_merge=True))
    if dense:
        merged = cast(PreTrainedModel, merged.to(target))  # pyright: ignore[reportArgumentType]
        merged.config.dtype = target
    return merged


@contextmanager
def _as_input_error(what: str) -> Iterator[None]:
    """Turn the many ways a checkpoint can fail to load into one short message."""
    try:
        yield
    except InputError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        RuntimeError,
        ImportError,
        EOFError,
        struct.error,
        pickle.UnpicklingError,
    ) as error:
        lines = [s for s in str(error).splitlines() if s.strip()] or [type(error).__name__]
        first = " ".join(s.strip() for s in lines[: 2 if lines[0].endswith(":") else 1])
        raise InputError(f"cannot load {what}: {refusal(error) or first[:300]}") from error
    except Exception as error:
        # safetensors raises a class of its own, private to its extension module.
        if type(error).__name__ != "SafetensorError":
            raise
        raise InputError(f"cannot load {what}: damaged safetensors file ({error})") from error


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers' own bars and notes while loading; surgekit reports in its own words.

    Its GGUF reader draws a bar that no switch turns off, so standard error is held back as a whole;
    errors are raised, not printed, and still come through.
    """
    from transformers.utils import logging as hf_logging

    level = hf_logging.get_verbosity()
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.CRITICAL)
    hf_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # of torch, harmless
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
