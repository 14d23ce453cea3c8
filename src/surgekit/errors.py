"""The errors surgekit raises on purpose.

Every message says what was expected, what was found, and the way out. Anything else that
escapes is a defect of surgekit, not of its input.
"""

from __future__ import annotations

import re

# A name and password in an address; a path keeps one of its two slashes.
# Bounded, so that a line of a million letters is read in one pass.
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,19}:/{1,2})[^\s/@]{1,1000}@")
_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,19}://[^\s/@\"']{1,1000}@")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Begun where the blanks begin, or a long run of them would be tried from each of its places.
_BREAK = re.compile(r"(?<!\s)\s*[\r\n\x0b\x0c\x85\u2028\u2029]\s*")
_LONGEST = 1500
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{12,}")


def without_secrets(text: str) -> str:
    """The text with hub tokens, and names and passwords in addresses, blotted out."""
    return _HUB_TOKEN.sub("hf_***", _LOGIN.sub(r"\1***@", text))


def secret_in(text: str) -> str | None:
    """What the text holds that nobody may read: a hub token, a password in an address, or None."""
    if _HUB_TOKEN.search(text):
        return "a hub token"
    return "a password in an address" if _PASSWORD.search(text) else None


def printable(text: str) -> str:
    """The text with control characters spelled out, so that it cannot steer a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class SurgekitError(Exception):
    """Root of all errors that surgekit raises on purpose; the work could not be done.

    Messages quote what was given, so secrets in them are blotted out, and they are one line of
    printable text whatever was in it.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(fit_to_show(a) if isinstance(a, str) else a for a in args))


def fit_to_show(text: str) -> str:
    """The text as one line that is fit for a terminal and a log: no secrets, and not endless."""
    text = printable(_BREAK.sub(" ", without_secrets(text)))
    # Of a message that quotes a long value both ends are kept: what was expected, and the way out.
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 505]} ... {text[-500:]}"


class InputError(SurgekitError):
    """What was given is wrong: a path, a key, a value, a file's content, a disk that is full.

    The command line ends with exit status 2 on it.
    """


class MismatchError(InputError):
    """Two things that must belong together do not: adapter and model, states and prompts."""


class NotFiniteError(InputError):
    """NaN or infinity where numbers were expected; names the domain and the step."""
