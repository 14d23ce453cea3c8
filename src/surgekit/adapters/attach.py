"""Attaching surgery to a live model: hooks on the decoder body, nothing replaced.

The model stays the user's own object; generate, PEFT and ``state_dict()`` go on as before. One
hook reads the positions where they enter the body, one corrects what the body returns.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from surgekit.adapters.files import (
    check_adapter_name,
    check_tensors,
    is_adapter,
    load_adapter,
    save_adapter,
)
from surgekit.adapters.generation import GenerationHook
from surgekit.adapters.positions import bound_arguments, remember_positions, token_positions
from surgekit.errors import InputError, MismatchError
from surgekit.models.anatomy import find_body, hidden_of, with_hidden
from surgekit.models.fingerprint import fingerprint
from surgekit.surgery.modules import SurgeryModule

BASE = "__base__"
"""The name that stands for no correction."""
_TRACED = 0

AdapterLike = SurgeryModule | str | Path


def attach(
    model: nn.Module,
    adapters: AdapterLike | Mapping[str, AdapterLike],
    *,
    active: str | None = None,
    ignore_fingerprint: bool = False,
    body: str | None = None,
) -> SurgeryHandle:
    """Correct a model's last hidden states from now on.

    Args:
        model: the merged causal language model the adapters were calibrated for (a PEFT wrapper
            around it will do).
        adapters: a surgery module, an adapter folder, or several of them by name. A single one is
            named by its domain, or ``default``.
        active: the adapter to start with; the first one unless named. ``__base__`` for none.
        ignore_fingerprint: attach although the model is not the one the adapter was made for.
        body: name of the decoder body, where the search for it fails.

    Returns:
        A handle, which is also a context manager: leaving it detaches, also after an exception.

    Raises:
        MismatchError: another hidden size, or another model than the adapter's.
        InputError: an adapter that cannot be read, or names that clash.

    Example:
        >>> with surgekit.attach(model, {"math": "adapters/math", "code": "adapters/code"}) as h:
        ...     with h.rows(["math", "code", "__base__"]):
        ...         model.generate(**batch_of_three)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"attach: expected a model, found {type(model).__name__}")
    handle = SurgeryHandle(model, body=body, ignore_fingerprint=ignore_fingerprint)
    named = adapters if isinstance(adapters, Mapping) else {None: adapters}
    if not named:
        raise InputError("attach: expected at least one adapter, found none")
    for name, adapter in named.items():
        handle.add_adapter(name, adapter)
    handle.set_adapter(active if active is not None else handle.adapter_names[0])
    handle.attach()
    return handle


class SurgeryHandle:
    """What ``attach`` returns: the adapters on one model, and the switch between them.

    Threads may share the model. What is chosen (``set_adapter``, ``rows``, ``disable_adapter``)
    holds for all of them, as a generation may run in a thread of its own; two threads cannot be
    inside ``rows`` or ``disable_adapter`` at once.
    """

    def __init__(
        self, model: nn.Module, *, body: str | None = None, ignore_fingerprint: bool = False
    ) -> None:
        self.model: Any = _unwrapped(model)
        self.body_name, self._body = find_body(self.model, body)
        self._ignore_fingerprint = ignore_fingerprint
        self._fingerprint: str | None = None
        self._stored: dict[str, SurgeryModule] = {}
        self._origin: dict[str, tuple[str, str]] = {}
        self._ready: dict[str, SurgeryModule] = {}
        self._active = BASE
        self._disabled = False
        self._rows: list[str] | None = None
        self._beams = 1
        self._chooser: int | None = None
        self._positions: dict[int, Tensor] = {}
        self._entered = False
        self._hooks: list[Any] = []

    # -- adapters -----------------------------------------------------------------------------

    @property
    def adapter_names(self) -> list[str]:
        """Names of the adapters at hand, in the order they were added."""
        return list(self._stored)

    @property
    def active_adapter(self) -> str:
        """The adapter that corrects all rows now, or ``__base__``."""
        return BASE if self._disabled else self._active

    @property
    def attached(self) -> bool:
        """False after ``detach``."""
        return bool(self._hooks)

    def add_adapter(self, name: str | None, adapter: AdapterLike) -> str:
        """Add an adapter (module or folder) and return its name; it does not become active.

        A module is copied, so what is done to it afterwards does not show here.
        """
        if isinstance(adapter, SurgeryModule):
            module, domain, method = adapter, "", ""
            check_tensors(dict(module.named_parameters()), module.config, "the module")
        elif isinstance(adapter, (str, Path)):
            module, info = load_adapter(adapter)
            domain, method = info.domain, info.method
        else:
            raise InputError(
                f"expected a surgery module or an adapter's folder, found {type(adapter).__name__}"
            )
        name = _name_of(domain) if name is None else check_adapter_name(name)
        if name in self._stored:
            raise InputError(f"an adapter named {name!r} is attached already; delete it first")
        self._check_fits(name, module)
        self._stored[name] = module
        self._origin[name] = (domain, method)
        # A float32 copy, so that decoding does not cast the weights anew at every token.
        self._ready[name] = _inference_copy(module)
        return name

    def set_adapter(self, name: str) -> None:
        """Let ``name`` correct all rows (``__base__``: none).

        Inside ``rows`` or ``disable_adapter`` it takes effect on leaving.
        """
        self._known(name)
        self._active = name

    def delete_adapter(self, name: str) -> None:
        """Forget an adapter; if it was active, nothing is corrected until another is set."""
        if name == BASE or name not in self._stored:
            self._known(name)
            raise InputError(f"{BASE} stands for no correction and cannot be deleted")
        del self._stored[name], self._origin[name], self._ready[name]
        if self._active == name:
            self._active = BASE

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """No correction inside this context."""
        with self._choosing(None, 1, disabled=True):
            yield

    @contextmanager
    def rows(self, names: Sequence[str], *, beams: int = 1) -> Iterator[None]:
        """Choose an adapter for each row of the batch inside this context.

        Args:
            names: one per row, ``__base__`` for no correction.
            beams: rows a prompt has in beam search or with several return sequences.

        Raises:
            InputError: an unknown name, or another thread is inside such a context.
        """
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise InputError(f"rows: expected a list of names, one a row, found {names!r}")
        if not isinstance(beams, int) or beams < 1:
            raise InputError(f"rows: expected beams as a number from 1, found {beams!r}")
        names = list(names)
        for name in names:
            self._known(name)
        with self._choosing(names, beams, disabled=False):
            yield

    @contextmanager
    def _choosing(self, rows: list[str] | None, beams: int, *, disabled: bool) -> Iterator[None]:
        me = threading.get_ident()
        if self._chooser not in (None, me):
            raise InputError(
                "another thread is inside rows() or disable_adapter() of this handle; let one "
                "thread choose at a time (a lock), or batch the requests and name a row each"
            )
        before = (self._rows, self._beams, self._disabled, self._chooser)
        self._rows, self._beams, self._disabled, self._chooser = rows, beams, disabled, me
        try:
            yield
        finally:
            self._rows, self._beams, self._disabled, self._chooser = before

    # -- files --------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Write every adapter to ``folder/NAME``, its domain and method as it was loaded."""
        for name, module in self._stored.items():
            domain, method = self._origin[name]
            save_adapter(module, Path(folder) / name, domain=domain or name, method=method)

    @classmethod
    def from_pretrained(cls, model: nn.Module, folder: str | Path, **options: Any) -> SurgeryHandle:
        """Attach the adapter in ``folder``, or all those in its subfolders by their names.

        ``folder`` may also be a hub id; the local cache is used where it holds it.
        """
        path = Path(folder)
        if not path.is_dir():
            path = _from_hub(str(folder))
        if is_adapter(path):
            return attach(model, path, **options)
        # Folders with a leading dot are what an interrupted save leaves behind.
        inside = [p for p in sorted(path.iterdir()) if not p.name.startswith(".")]
        found = {p.name: p for p in inside if is_adapter(p)}
        if not found:
            raise InputError(f"{folder}: expected an adapter, or adapters in subfolders")
        return attach(model, dict(found), **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload all adapters to a hub repository, one folder each; returns its address."""
        import tempfile

        from huggingface_hub import HfApi

        api = HfApi()
        url = api.create_repo(repo_id, exist_ok=True, private=options.pop("private", None))
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            api.upload_folder(repo_id=repo_id, folder_path=folder, **options)
        return str(url)

    # -- life ---------------------------------------------------------------------------------

    @classmethod
    def of(cls, model: nn.Module) -> SurgeryHandle | None:
        """The handle that corrects ``model`` now; a copy of a corrected model has its own."""
        inner = _unwrapped(model)
        for module in inner.modules():
            for hook in module._forward_hooks.values():
                owner = getattr(hook, "__self__", None)
                if isinstance(owner, cls) and owner.model is inner:
                    return owner
        return None

    def attach(self) -> None:
        """Put the hooks on (again, after ``detach``). Doing it twice is fine.

        Raises:
            InputError: another handle corrects this model; two would correct twice.
        """
        if not self._hooks:
            if SurgeryHandle.of(self.model) is not None:
                raise InputError(
                    "this model is corrected already, and a second handle would correct it twice; "
                    "take SurgeryHandle.of(model) and its add_adapter, or detach it first"
                )
            self._hooks = [
                self._body.register_forward_pre_hook(self._note_positions, with_kwargs=True),
                self._body.register_forward_hook(self._correct_output),
                self.model.register_forward_hook(self._expect_entered),
            ]
            if hasattr(self.model, "generate"):
                self._hooks.append(GenerationHook(self.model, self._correcting))
            self._entered = False
            _forget_compiled()

    def detach(self) -> None:
        """Take the hooks off; the model is then as it was, bit for bit. Doing it twice is fine."""
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            self._positions.clear()
            _forget_compiled()

    def __enter__(self) -> SurgeryHandle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = f"active={self._active!r}" if self.attached else "detached"
        return f"SurgeryHandle({state}, adapters={self.adapter_names})"

    # -- hooks --------------------------------------------------------------------------------

    # What belongs to one call is kept by thread, for threads may share the model.

    def _note_positions(
        self, body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # Before the body runs: afterwards its cache has grown by this very step.
        call = bound_arguments(body, args, kwargs)
        self._positions[_thread()] = token_positions(call, required=self._correcting())

    def _correct_output(self, body: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        positions = self._positions.pop(_thread(), None)
        if positions is None:  # noted by a traced part of the call
            positions = self._positions.pop(_TRACED, None)
        if positions is None:
            raise InputError("the model's body returned without having been entered")
        self._entered = True
        remember_positions(output, positions)
        hidden = hidden_of(output)
        return with_hidden(output, self._correct(hidden, positions.to(hidden.device)))

    def _expect_entered(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # A hook that never fires corrects nothing, and nothing else would show it.
        if not self._entered:
            raise InputError(
                f"{type(model).__name__} ran without entering its body {self.body_name!r}, so "
                "nothing was corrected; name the decoder body with body="
            )

    def _correcting(self) -> bool:
        return self._rows is not None or self.active_adapter != BASE

    def _correct(self, hidden: Tensor, positions: Tensor) -> Tensor:
        if self._rows is None:
            return self._apply(self.active_adapter, hidden, positions)
        names = [name for name in self._rows for _ in range(self._beams)]
        if len(names) != len(hidden):
            raise MismatchError(
                f"rows: {len(self._rows)} names (× {self._beams} beams) for a batch of "
                f"{len(hidden)} rows; give one name a row, and beams= for beam search"
            )
        positions = positions.expand(len(hidden), -1)
        corrected = hidden.clone()
        for name in dict.fromkeys(names):
            self._known(name)  # it may have been deleted since rows() was entered
            index = torch.tensor([i for i, n in enumerate(names) if n == name])
            index = index.to(hidden.device)
            corrected[index] = self._apply(name, hidden[index], positions[index])
        return corrected

    def _apply(self, name: str, hidden: Tensor, positions: Tensor) -> Tensor:
        if name == BASE:
            return hidden
        module = self._ready[name]
        if next(module.parameters()).device != hidden.device:
            module.to(hidden.device)
        # Autocast, as in mixed-precision training, would round the correction to bfloat16.
        with torch.autocast(hidden.device.type, enabled=False):
            return module(hidden, positions)

    # -- checks -------------------------------------------------------------------------------

    def _known(self, name: str) -> None:
        if name != BASE and name not in self._stored:
            at_hand = ", ".join([*self._stored, BASE])
            raise InputError(f"no adapter named {name!r} is attached; there are {at_hand}")

    def _check_fits(self, name: str, module: SurgeryModule) -> None:
        # What enters the head is what is corrected; OPT-350m projects its states before it.
        head = getattr(self.model, "get_output_embeddings", lambda: None)()
        size = getattr(head, "in_features", None)
        if size is None:
            size = getattr(self.model.config.get_text_config(), "hidden_size", None)
        if size is not None and size != module.config.hidden_size:
            raise MismatchError(
                f"adapter {name!r} corrects hidden states of width {module.config.hidden_size}, "
                f"this model has {size}"
            )
        wanted = module.record.get("merged_fingerprint")
        if not wanted or self._ignore_fingerprint:
            return
        if self._fingerprint is None or self._hooks:  # weights may have changed since attach()
            self._fingerprint = fingerprint(self.model)
        if self._fingerprint != wanted:
            raise MismatchError(
                f"adapter {name!r} was made for the model {wanted[:16]}…, this one is "
                f"{self._fingerprint[:16]}…; load the merged model it belongs to, or pass "
                "ignore_fingerprint=True"
            )


def _name_of(domain: str) -> str:
    """The name of an adapter that is given none: its domain."""
    if not domain:
        return "default"
    try:
        return check_adapter_name(domain)
    except InputError as error:
        raise InputError(
            f"{error}; the adapter's domain is no such name, so give it one: "
            "attach(model, {'NAME': adapter})"
        ) from error


def _unwrapped(model: nn.Module) -> Any:
    """The causal language model inside PEFT's and torch.compile's wrappers."""
    inner: Any = model
    while True:
        if isinstance(getattr(inner, "_orig_mod", None), nn.Module):
            inner = inner._orig_mod
        elif callable(getattr(inner, "get_base_model", None)):
            inner = inner.get_base_model()
        else:
            return inner


def _thread() -> int:
    """Whose call this is. torch.compile cannot trace the question, and runs what it traced as one.

    Where it breaks a call into pieces, threads must not share a compiled model.
    """
    return _TRACED if torch.compiler.is_compiling() else threading.get_ident()


def _forget_compiled() -> None:
    """Have torch.compile trace models anew: its guards do not look at hooks.

    A model that was compiled and run before hooks came or went would go on as it was, uncorrected
    or corrected, with no sign of it. Other compiled models are traced once more too.
    """
    torch.compiler.reset()


def _inference_copy(module: SurgeryModule) -> SurgeryModule:
    copied = copy.deepcopy(module).requires_grad_(False).eval()
    return copied.float() if next(copied.parameters()).dtype != torch.float64 else copied


def _from_hub(repo_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id, allow_patterns=["*.json", "*.safetensors", "*.md"]))
    except (OSError, ValueError) as error:
        raise InputError(f"{repo_id!r} is neither a folder nor a hub id at hand") from error
