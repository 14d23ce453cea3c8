"""The errors surgekit raises on purpose.

Every message says what was expected, what was found, and the way out. Anything else that
escapes is a defect of surgekit, not of its input.
"""

from __future__ import annotations


class SurgekitError(Exception):
    """Root of all errors that surgekit raises on purpose; the work could not be done."""


class InputError(SurgekitError):
    """What was given is wrong: a path, a key, a value, a file's content, a disk that is full.

    The command line ends with exit status 2 on it.
    """


class MismatchError(InputError):
    """Two things that must belong together do not: adapter and model, states and prompts."""


class NotFiniteError(InputError):
    """NaN or infinity where numbers were expected; names the domain and the step."""
