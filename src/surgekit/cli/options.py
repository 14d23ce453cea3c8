"""Options that are settings: NAME=VALUE pairs, and what is wrong with a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from surgekit.adapters.files import check_adapter_name
from surgekit.errors import InputError
from surgekit.parsing import first_problem, nearest
from surgekit.states.prompts import TextPart

UNNAMED = "domain"
"""What a single value without a name is called."""


def named(values: list[str], option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping; a single value may go without its name.

    Raises:
        InputError: no pair, an empty or unfit name, or a name given twice.
    """
    pairs: dict[str, str] = {}
    for value in values:
        name, found, rest = value.partition("=")
        # A path may have = in it: experiments/lr=0.1/merged.
        if len(values) == 1 and (not found or ("/" in name and Path(value).exists())):
            name, rest = UNNAMED, value
        elif not found or not name or not rest:
            raise InputError(f"{option}: expected NAME=VALUE, found {value!r}")
        try:
            check_adapter_name(name)
        except InputError as error:
            raise InputError(f"{option}: {error}") from error
        if name in pairs:
            raise InputError(f"{option}: {name!r} is given twice")
        if not rest.strip():
            raise InputError(f"{option}: expected a value, found {value!r}")
        pairs[name] = rest
    return pairs


def option_error(
    error: ValueError, given: Any = None, called: Mapping[str, str] | None = None
) -> InputError:
    """What is wrong with the value of an option, the option's name first where it is known.

    Args:
        error: pydantic's, or a plain one.
        given: what was validated.
        called: options whose names are not their setting's.
    """
    if not isinstance(error, ValidationError):
        return InputError(str(error))
    problem = first_problem(error, given)
    if not problem.path or problem.named:
        return InputError(str(problem))
    setting = str(problem.path[0])
    option = (called or {}).get(setting, f"--{setting.replace('_', '-')}")
    return InputError(f"{option}: {problem.said}")


def text_part(text: str) -> TextPart:
    """The value of ``--text``; raises InputError on another."""
    known = get_args(TextPart)
    if text not in known:
        hint = nearest(text, known)
        raise InputError(f"--text: expected prompt, response or both, found {text!r}{hint}")
    return text  # type: ignore[return-value]
