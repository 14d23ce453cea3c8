"""Running mergekit without what it does besides merging: to logs, random states, open files."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import pickle
import random
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from surgekit.errors import InputError, SurgekitError
from surgekit.models.untrusted import refusal
from surgekit.parsing import first_problem

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
# mergekit seeds global generators and keeps its open files in a class attribute.
_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def tamed(quiet: bool) -> Iterator[None]:
    """Around all use of mergekit: alone, with fresh files, and with the caller's random state.

    Args:
        quiet: nothing of its log and its progress bars gets out. Other threads that log meanwhile
            are not heard either. Else bars are drawn where stderr is a terminal. Warnings of the
            libraries, which are for those who write them, never get out.
    """
    with (
        _ONE_AT_A_TIME,
        _random_state_kept(),
        _silenced(quiet),
        _vocabularies_in_order(),
        _pickles_hold_weights_only(),
    ):
        # Imported here, and torch before it: mergekit's pydantic models need it (its #681).
        from mergekit.architecture.auto import infer_architecture_info
        from mergekit.io.tasks import LoaderCache

        # Both remember checkpoints by path alone and would serve old ones that were overwritten.
        LoaderCache().loaders.clear()
        infer_architecture_info.cache_clear()
        try:
            yield
        finally:
            LoaderCache().loaders.clear()


@contextlib.contextmanager
def mergekit_errors(what: str) -> Iterator[None]:
    """Turn the many ways in which mergekit fails into one short message.

    Raises:
        InputError: with the first line of what mergekit says.
        SurgekitError: memory ran out.
        OSError: the disk refuses to be written to, for ``folder_written_whole`` to report.
    """
    from pydantic import ValidationError

    try:
        yield
    except SurgekitError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise SurgekitError(f"{what}: out of memory; free some or take another device") from error
    except ValidationError as error:
        raise InputError(f"{what}: {first_problem(error)}") from error
    except (
        *(RuntimeError, ValueError, TypeError, LookupError, AttributeError),
        *(OSError, ImportError, AssertionError, EOFError, pickle.UnpicklingError),
    ) as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        raise InputError(f"{what}: {refusal(error) or _first_line(error)}") from error
    except Exception as error:
        # safetensors raises a class of its own, private to its extension module.
        if type(error).__name__ != "SafetensorError":
            raise
        found = _OS_ERROR.search(str(error))
        if found and int(found[1]) in _DISK:
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
        raise InputError(f"{what}: damaged safetensors file ({error})") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    first = text.splitlines()[0][:400] if text else "no reason given"
    # A KeyError says nothing but the key.
    plain = isinstance(error, (RuntimeError, ValueError, OSError)) and bool(text)
    return first if plain else f"{type(error).__name__}: {first}"


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    # Asking for the state would start CUDA, which costs memory; not started, it has none to lose.
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def random_numbers_drawn(seed: int) -> bool:
    """Whether mergekit drew random numbers since it set all generators to ``seed``."""
    from transformers.trainer_utils import set_seed

    after = _random_state()
    set_seed(seed)
    return pickle.dumps(after) != pickle.dumps(_random_state())


def _random_state() -> list[Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    tensors = [torch.get_rng_state(), *cuda]
    return [random.getstate(), np.random.get_state(), [t.numpy().tobytes() for t in tensors]]


@contextlib.contextmanager
def _vocabularies_in_order() -> Iterator[None]:
    """List vocabularies by id: the tokenizers library lists them out of a randomly hashed map.

    A union of vocabularies numbers new tokens in the order in which they are listed.
    """
    from transformers import PreTrainedTokenizerFast

    listed = PreTrainedTokenizerFast.get_vocab

    def in_order(self: PreTrainedTokenizerFast) -> dict[str, int]:
        return dict(sorted(listed(self).items(), key=lambda item: item[1]))

    PreTrainedTokenizerFast.get_vocab = in_order
    try:
        yield
    finally:
        PreTrainedTokenizerFast.get_vocab = listed


@contextlib.contextmanager
def _pickles_hold_weights_only() -> Iterator[None]:
    """Have torch run no pickled code, and say which file asked for it.

    mergekit leaves that to torch's default, which TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD turns around.
    """
    load: Any = torch.load

    def guarded(file: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("weights_only", True)
        try:
            return load(file, *args, **kwargs)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            said = refusal(error)
            if said is None:
                raise
            raise InputError(f"{file}: {said}") from error

    torch.load = guarded
    try:
        yield
    finally:
        torch.load = load


@contextlib.contextmanager
def _transformers_silenced() -> Iterator[None]:
    """Have transformers log errors alone: its advice is about how mergekit calls it."""
    from transformers.utils import logging as of_transformers

    level = of_transformers.get_verbosity()
    of_transformers.set_verbosity_error()
    try:
        yield
    finally:
        of_transformers.set_verbosity(level)


def _shows_bars(quiet: bool) -> bool:
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Have tqdm draw nothing, whatever its callers ask for: mergekit's bars heed no one switch."""
    from tqdm import std

    begin = std.tqdm.__init__

    def without(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs | {"disable": True})

    std.tqdm.__init__ = without
    try:
        yield
    finally:
        std.tqdm.__init__ = begin


@contextlib.contextmanager
def _silenced(quiet: bool) -> Iterator[None]:
    root = logging.getLogger()
    handlers, disabled = list(root.handlers), root.manager.disable
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # Warnings of third parties never become errors here, whatever the caller's filters say.
        warnings.simplefilter("ignore")
        stack.enter_context(_transformers_silenced())
        if not _shows_bars(quiet):
            stack.enter_context(_no_bars())
        if quiet:
            logging.disable(logging.CRITICAL)
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        try:
            yield
        finally:
            logging.disable(disabled)
            # logging.warning() sets up the root logger where nobody has.
            for handler in root.handlers[:]:
                if handler not in handlers:
                    root.removeHandler(handler)
