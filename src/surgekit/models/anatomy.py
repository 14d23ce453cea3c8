"""Where a decoder's parts lie: its body, its final norm, and the head that makes logits.

Parts are found by structure, not by a list of classes, and the find is checked by numbers:
one probe forward must show that head(body output) are the model's own logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from surgekit.errors import InputError, NotFiniteError
from surgekit.models.offload import run_device, values_of

_PROBE_TOKENS = 8


@dataclass(frozen=True)
class Head:
    """All that turns the last hidden state into logits.

    ``logits = cap(scale · (hidden @ weight.T + bias))``, ``cap(x) = softcap · tanh(x / softcap)``.

    Attributes:
        weight: (V, d), in the model's dtype.
        bias: (V,) or None.
        scale: factor on the logits (Cohere, Granite).
        softcap: bound of a tanh on the logits (Gemma 2), or None.
        exact_in_bfloat16: the weights are bfloat16 values, whatever type they are held in.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None
    exact_in_bfloat16: bool = False

    @property
    def vocabulary(self) -> int:
        """Number of rows V."""
        return self.weight.shape[0]

    def logits(self, hidden: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Logits of vocabulary rows ``start:stop`` in float32 (float64 for float64 input).

        Args:
            hidden: (…, d) last hidden states.

        Returns:
            (…, rows). Sums are kept in float32 or wider, so the result is free of the rounding
            that a bfloat16 product would add.
        """
        kind = torch.promote_types(hidden.dtype, torch.float32)
        weight = self.weight[start:stop].to(kind)
        bias = None if self.bias is None else self.bias[start:stop].to(kind)
        with _bfloat16_units(self.exact_in_bfloat16 and hidden.dtype == torch.bfloat16):
            out = F.linear(hidden.to(kind), weight, bias)
        if self.scale != 1.0:
            out = out * self.scale
        if self.softcap is not None:
            out = self.softcap * torch.tanh(out / self.softcap)
        return out

    def prepared(self, dtype: torch.dtype = torch.float32, device: Any = None) -> Head:
        """The same head cast once, for many calls of ``logits``."""
        bias = None if self.bias is None else self.bias.to(device=device, dtype=dtype)
        return replace(
            self,
            weight=self.weight.to(device=device, dtype=dtype),
            bias=bias,
            exact_in_bfloat16=self.weight.dtype == torch.bfloat16 or self.exact_in_bfloat16,
        )


@contextmanager
def _bfloat16_units(wanted: bool) -> Iterator[None]:
    """Let float32 products run on bfloat16 units (CPUs with AMX), several times faster.

    Where both factors are bfloat16 values in float32, each product is exact and sums stay in
    float32: the same numbers up to the order of summation. Never right for other factors.
    """
    backend: Any = torch.backends.mkldnn
    matmul = backend.matmul
    before = matmul.fp32_precision
    if wanted:
        matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


@dataclass(frozen=True)
class Anatomy:
    """Names of a model's parts, as ``model.get_submodule`` takes them.

    Attributes:
        body: the decoder without its head; its output is the last hidden state.
        norm: the final norm inside the body, or None where the body does not end in one.
        head: the linear map to the vocabulary.
        hidden_size: d.
    """

    body: str
    norm: str | None
    head: str
    hidden_size: int


def find_body(model: nn.Module, override: str | None = None) -> tuple[str, nn.Module]:
    """The decoder body of a causal language model: (name, module).

    transformers names it in ``base_model_prefix``; where that fails, it is the one direct child
    that contains the input embedding but not the head.

    Raises:
        InputError: nothing fits; ``override`` names the module by hand.
    """
    if override is not None:
        return override, _submodule(model, override, "body")
    embedding, head = _embeddings(model)
    prefix = getattr(model, "base_model_prefix", "")
    named = getattr(model, prefix, None) if prefix else None
    if isinstance(named, nn.Module) and named is not model and head not in set(named.modules()):
        return _innermost(prefix, named, embedding)
    for name, child in model.named_children():
        inside = set(child.modules())
        if child is not embedding and embedding in inside and head not in inside:
            return _innermost(name, child, embedding)
    raise InputError(
        f"{type(model).__name__}: found no decoder body (a child that holds the input embedding "
        "but not the head); name it with body="
    )


def _innermost(name: str, body: nn.Module, embedding: nn.Module | None) -> tuple[str, nn.Module]:
    """Step through shells around a single child: OPT calls the decoder in one, never the shell."""
    children = list(body.named_children())
    while len(children) == 1 and children[0][1] is not embedding:
        inner, child = children[0]
        if embedding not in set(child.modules()):
            break
        name, body = f"{name}.{inner}", child
        children = list(body.named_children())
    return name, body


def find_head(model: PreTrainedModel, override: str | None = None) -> tuple[str, Head]:
    """The head of a causal language model: (name, Head), scale and soft cap from the config."""
    module = _submodule(model, override, "head") if override else _embeddings(model)[1]
    name = override or next((n for n, m in model.named_modules() if m is module), None)
    weight = None if name is None else values_of(model, f"{name}.weight")
    if name is None or weight is None or weight.dim() != 2:
        raise InputError(
            f"{type(model).__name__}: found no head with a (vocabulary, hidden) weight; "
            "name it with head="
        )
    if not weight.is_floating_point():
        raise InputError(
            f"{type(model).__name__}: its head is quantised ({weight.dtype}); surgekit needs it in "
            "floating point (most quantisers leave lm_head alone; reload with it excluded)"
        )
    scale, softcap = _logit_transform(model.config)
    return name, Head(weight, values_of(model, f"{name}.bias"), scale, softcap)


@torch.no_grad()
def find_anatomy(
    model: PreTrainedModel, *, body: str | None = None, head: str | None = None
) -> tuple[Anatomy, Head]:
    """Find body, final norm and head, and prove the find with one forward of a few tokens.

    Args:
        body, head: names that override the search.

    Raises:
        InputError: head(body output) is not what the model itself computes, or its states depend
            on tokens that come later.
        NotFiniteError: the model computes NaN.
    """
    body_name, body_module = find_body(model, body)
    head_name, head_parts = find_head(model, head)
    seen: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}

    def note_norm(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                last[name] = output

        return hook

    handles = [
        m.register_forward_hook(note_norm(n))
        for n, m in body_module.named_modules()
        if "norm" in type(m).__name__.lower() or n.rsplit(".", 1)[-1].lower().endswith("norm")
    ]
    handles.append(
        body_module.register_forward_hook(
            lambda module, args, output: seen.update(out=hidden_of(output))
        )
    )
    vocabulary, device = token_input(model)
    # Two rows that differ in their last token: what comes before must not.
    tokens = (torch.arange(_PROBE_TOKENS, device=device) * 7 + 3).repeat(2, 1)
    tokens[1, -1] += 1
    tokens = tokens.remainder(vocabulary)
    try:
        own = model(input_ids=tokens, use_cache=False).logits.float()
    finally:
        for handle in handles:
            handle.remove()
    hidden = seen.get("out")
    if hidden is None or hidden.shape[:2] != tokens.shape:
        raise InputError(
            f"{type(model).__name__}: {body_name!r} gave no (batch, tokens, d) output; "
            "name the decoder body with body="
        )
    if hidden.shape[-1] != head_parts.weight.shape[1]:
        raise InputError(
            f"{type(model).__name__}: body {body_name!r} gives {hidden.shape[-1]} numbers a token, "
            f"head {head_name!r} takes {head_parts.weight.shape[1]}; name them with body= and head="
        )
    if bool(own.isnan().any()):
        raise NotFiniteError(f"{type(model).__name__}: its logits are NaN; check its weights")
    tolerance = 0.02 if model.dtype in (torch.bfloat16, torch.float16) else 1e-3

    def proven(parts: Head) -> bool:
        ours = parts.logits(hidden.to(parts.weight.device)).to(own.device)
        return ours.shape == own.shape and _apart(ours, own) <= tolerance

    if not proven(head_parts):
        # A config may hold a scale or a cap that the model's code does not apply.
        head_parts = replace(head_parts, scale=1.0, softcap=None)
    if not proven(head_parts):
        raise InputError(
            f"{type(model).__name__}: {head_name}({body_name} output) are not the model's own "
            "logits, so something lies between that surgekit does not know; such a model cannot "
            "be corrected exactly. If the parts were found wrongly, name them with body= and head="
        )
    # Above what rounding differs by between rows: much where weights or products are coarse.
    coarse = model.dtype != torch.float32 or getattr(model, "is_quantized", False)
    if _apart(hidden[1, :-1], hidden[0, :-1]) > (0.05 if coarse else 1e-3):
        raise InputError(
            f"{type(model).__name__}: its states depend on tokens that come later, so it is no "
            "causal language model; surgekit corrects models that predict the next token"
        )
    norms = [n for n, value in last.items() if value.shape == hidden.shape]
    norm = next((n for n in reversed(norms) if torch.equal(last[n], hidden)), None)
    full_norm = None if norm is None else f"{body_name}.{norm}"
    return Anatomy(body_name, full_norm, head_name, hidden.shape[-1]), head_parts


def _apart(found: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest value."""
    return float((found - expected).abs().max() / (expected.abs().max() + 1e-4))


def token_input(model: PreTrainedModel) -> tuple[int, torch.device]:
    """(rows of the input embedding, where token ids must lie)."""
    embedding = cast(Any, model.get_input_embeddings())
    return embedding.weight.shape[0], run_device(embedding)


def hidden_of(output: Any) -> Tensor:
    """The last hidden state in a body's output: a ModelOutput, a tuple, or the tensor itself."""
    if isinstance(output, Tensor):
        return output
    state = getattr(output, "last_hidden_state", None)
    return cast(Tensor, output[0] if state is None else state)


def with_hidden(output: Any, hidden: Tensor) -> Any:
    """A body's output with ``hidden`` as its last hidden state."""
    if isinstance(output, Tensor):
        return hidden
    if isinstance(output, tuple):
        return (hidden, *output[1:])
    output.last_hidden_state = hidden
    # With output_hidden_states the last entry is this same state; show the corrected one.
    states = getattr(output, "hidden_states", None)
    if isinstance(states, tuple) and states and states[-1].shape == hidden.shape:
        output.hidden_states = (*states[:-1], hidden)
    return output


def _embeddings(model: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    get_in = getattr(model, "get_input_embeddings", None)
    get_out = getattr(model, "get_output_embeddings", None)
    return (get_in() if get_in else None), (get_out() if get_out else None)


def _submodule(model: nn.Module, name: str, what: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        children = ", ".join(n for n, _ in model.named_children())
        raise InputError(
            f"{type(model).__name__} has no {what} {name!r}; children: {children}"
        ) from error


def _logit_transform(config: Any) -> tuple[float, float | None]:
    """Scale and soft cap that the config declares (checked by numbers in find_anatomy)."""
    text = config.get_text_config()
    scale = 1.0
    for key, inverse in (
        ("logit_scale", False),
        ("lm_head_multiplier", False),
        ("logits_scaling", True),
    ):
        value = getattr(text, key, None)
        if isinstance(value, (int, float)) and value:
            scale *= 1.0 / value if inverse else float(value)
    for key in ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"):
        softcap = getattr(text, key, None)
        if isinstance(softcap, (int, float)) and softcap:
            return scale, float(softcap)
    return scale, None
