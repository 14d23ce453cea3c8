"""Reading what people write: text files, YAML, settings; errors name the place and a way out."""

from __future__ import annotations

import codecs
import difflib
import math
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from surgekit.errors import InputError, secret_in

YAML_BYTES = 1 << 20
"""The longest YAML file that is read; one by hand is a hundred times shorter."""
_HEAD = 1 << 16
_YAML_VALUES = 1_000_000
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_ODD = {
    "timestamp": "a date to YAML",
    "binary": "binary data",
    "set": "a set; write a list",
    "omap": "an ordered map; write a mapping",
    "pairs": "a list of pairs; write a mapping",
}
_TOO_SHORT = re.compile(
    r"\w+ should have at least (\d+) items? after validation, not (\d+)", re.ASCII
)
_QUOTED = re.compile(r"'([^']*)'")


def read_text(path: Path, what: str, *, limit: int | None = None) -> str:
    """Read a UTF-8 text file; a byte order mark and the line ends of other systems are taken away.

    Args:
        what: names the file in messages, as in "recipe not found: …".
        limit: bytes that a file of this kind may have at most.

    Raises:
        InputError: missing, a folder, not readable, not UTF-8, binary, or longer than ``limit``.
    """
    expected = f"{path}: {what} expected as UTF-8 text"
    try:
        # Before it is opened: a pipe that nobody writes to would be waited for.
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            found = "a pipe" if stat.S_ISFIFO(kind) else "a device or a socket"
            raise InputError(f"{expected}, found {found}; write it to a file and name that")
        with path.open("rb") as file:
            head = file.read(_HEAD)
            # Looked at before all is read: a file of weights may be of any size.
            coding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
            if coding is not None:
                raise InputError(f"{expected}, found {coding}; save it as UTF-8")
            if b"\0" in head:
                raise InputError(f"{expected}, found binary data")
            rest = file.read() if limit is None else file.read(limit + 1)
    except FileNotFoundError as error:
        link = "; it is a link to nothing" if path.is_symlink() else ""
        raise InputError(f"{what} not found: {path}{link}") from error
    except IsADirectoryError as error:
        raise InputError(f"{expected}, found a folder") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}") from error
    data = head + rest
    if limit is not None and len(data) > limit:
        raise InputError(f"{expected}, found more than {limit >> 10} KiB of it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{expected}, found byte 0x{data[error.start]:02x} in line {line}; save it as UTF-8"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_yaml(text: str, name: str) -> tuple[Any, yaml.Node | None]:
    """(value, syntax tree) of a YAML text; safe types only.

    Raises:
        InputError: no YAML, a secret in it, a key given twice, a value that contains itself, or
            aliases that stand for more than a million values; says the line where it is known.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        refuse_secret(line, f"{name}, line {number}")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _refuse_traps(root, name)
        return yaml.safe_load(text), root
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        if problem.startswith("but "):  # the other half of a sentence
            problem = f"{getattr(error, 'context', None) or ''}, {problem}"
        raise InputError(f"{name}{where}: not YAML ({problem})") from error
    except (ValueError, RecursionError) as error:  # 2020-13-45; a thousand open brackets
        raise InputError(f"{name}: not YAML that can be read ({error})") from error


def refuse_secret(text: str, where: str) -> None:
    """Raise InputError where settings hold a secret: they are copied into what is written."""
    found = secret_in(text)
    if found is not None:
        raise InputError(
            f"{where}: holds what looks like {found}; take it out, huggingface_hub reads HF_TOKEN "
            "by itself"
        )


def line_of(node: yaml.Node | None) -> int | None:
    """The line a node of a syntax tree begins in, from 1."""
    return None if node is None or node.start_mark is None else node.start_mark.line + 1


def line_at(root: yaml.Node | None, path: tuple[str | int, ...]) -> int | None:
    """The line of a setting in the YAML, or of the deepest part of its path that is there."""
    node = root
    line = None
    for part in path:
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = next(((v, v) for v in node.value[part : part + 1]), None)
        if found is None:
            break
        line, node = line_of(found[0]), found[1]
    return line


def node_at(root: yaml.Node | None, key: str) -> yaml.Node | None:
    """The value of a key in the outermost mapping of a YAML, where it is there."""
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)


def nearest(word: object, known: Iterable[str]) -> str:
    """``; did you mean 'seeds'?`` where one of ``known`` is near, else nothing."""
    by_letters = {str(k).lower(): k for k in known}
    near = difflib.get_close_matches(str(word).lower(), list(by_letters), n=1)
    return f"; did you mean {by_letters[near[0]]!r}?" if near else ""


class Problem(NamedTuple):
    """What is wrong with a setting.

    Attributes:
        path: where it stands, keys and indices from the outermost.
        said: what is wrong; where ``named``, with the key in it.
    """

    path: tuple[str | int, ...]
    said: str
    named: bool

    @property
    def key(self) -> str:
        """The path as text: ``domains.math.test``."""
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        return self.said if self.named or not self.path else f"{self.key}: {self.said}"


def first_problem(
    error: ValidationError, given: Any = None, model: type[BaseModel] | None = None
) -> Problem:
    """The first problem in one form: key path and message, and the nearest key or value.

    Args:
        error: pydantic's.
        given: what was validated; tells its own keys from parts that pydantic adds to a path.
        model: what it was validated against; knows the keys that may be meant.
    """
    # Of a union pydantic reports every branch; the deepest entry is about what was meant.
    first = max(error.errors(), key=lambda e: (e["type"] == "extra_forbidden", len(e["loc"])))
    path = _own_path(first["loc"], given)
    key = ".".join(map(str, path))
    known = _keys_at(model, path[:-1])
    if first["type"] == "extra_forbidden":
        return Problem(path, f"unknown key {key!r}{nearest(path[-1], known)}", named=True)
    if first["type"] == "missing":
        # A key that nobody knows and that is near the missing one is most likely meant for it.
        strange = [str(k) for k in _mapping_at(given, path[:-1]) if k not in known]
        near = difflib.get_close_matches(str(path[-1]), strange, n=1)
        found = f"; found {near[0]!r} instead" if near else ""
        return Problem(path, f"key {key!r} is missing{found}", named=True)
    message = in_plain_words(str(first["msg"]))
    value = first.get("input")
    if isinstance(value, (dict, list, tuple, BaseModel)):
        return Problem(path, message, named=False)
    shown = "nothing" if value is None else repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:76]} ..."
    hint = nearest(value, _QUOTED.findall(message)) if first["type"] == "literal_error" else ""
    return Problem(path, f"{message}, found {shown}{hint}", named=False)


def in_plain_words(message: str) -> str:
    """A message of pydantic's in the words of this package: what was expected."""
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message.split(", unable to ")[0].split(" or instance of ")[0]
    short = _TOO_SHORT.fullmatch(message)
    if short:
        entries = "entry" if short[1] == "1" else "entries"
        found = "none" if short[2] == "0" else short[2]
        return f"expected at least {short[1]} {entries}, found {found}"
    for old, new in (
        ("Input should be greater", "expected a number greater"),
        ("Input should be less", "expected a number less"),
        ("Input should be a valid dictionary", "expected a mapping"),
        ("Input should be a valid ", "expected a "),
        ("Input should be ", "expected "),
    ):
        if message.startswith(old):
            message = new + message.removeprefix(old)
            break
    return message.replace("expected a integer", "expected an integer")


def _own_path(location: tuple[str | int, ...], given: Any) -> tuple[str | int, ...]:
    """A location of pydantic's without the parts it adds to tell a union's branches apart."""
    path: list[str | int] = []
    for part in location:
        known = isinstance(given, dict) and str(part) in map(str, given)
        if known:
            given = next(v for k, v in given.items() if str(k) == str(part))
        elif isinstance(given, (list, tuple)) and isinstance(part, int) and part < len(given):
            given = given[part]
        elif _is_branch(part):
            continue  # a domain may be called "int", so what was given is asked first
        else:
            given = None
        path.append(part)
    return tuple(path)


def _is_branch(part: str | int) -> bool:
    """Of a union the branch, called by its type or by the class of a model."""
    return isinstance(part, str) and (
        "[" in part or part[:1].isupper() or part in ("str", "int", "float", "bool", "none")
    )


def _mapping_at(given: Any, path: tuple[str | int, ...]) -> dict[Any, Any]:
    for part in path:
        if isinstance(given, dict):
            given = given.get(part)
        elif isinstance(given, (list, tuple)) and isinstance(part, int):
            given = given[part] if part < len(given) else None
    return given if isinstance(given, dict) else {}


def _keys_at(model: Any, path: tuple[str | int, ...]) -> list[str]:
    """The keys that a pydantic model takes at a path: of models in lists and mappings too."""
    inside = False
    for part in path:
        if inside:  # an index or a name; all that stand beside each other are alike
            inside = False
        elif _is_model(model) and str(part) in model.model_fields:
            model, inside = _model_in(model.model_fields[str(part)].annotation)
        else:
            return []
    return list(model.model_fields) if _is_model(model) and not inside else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _model_in(annotation: Any) -> tuple[Any, bool]:
    """(the model that an annotation holds or None, whether in a list or a mapping)."""
    if _is_model(annotation):
        return annotation, False
    for argument in get_args(annotation):
        model, inside = _model_in(argument)
        if model is not None:
            return model, inside or get_origin(annotation) in (list, dict)
    return None, False


def _refuse_traps(root: yaml.Node, name: str) -> None:
    """Refuse what YAML allows and nobody means: double keys, cycles, aliases of aliases, dates."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, above: frozenset[int]) -> int:
        """How many values a node stands for, its aliases written out."""
        if id(node) in above:
            raise InputError(f"{name}, line {line_of(node)}: this value contains itself")
        if id(node) not in sizes:
            above = above | {id(node)}
            _refuse_odd_values(node, name)
            inside: list[yaml.Node] = []
            if isinstance(node, yaml.MappingNode):
                _refuse_double_keys(node, name)
                inside = [part for pair in node.value for part in pair]
            elif isinstance(node, yaml.SequenceNode):
                inside = node.value
            sizes[id(node)] = 1 + sum(size(part, above) for part in inside)
        if sizes[id(node)] > _YAML_VALUES:
            raise InputError(
                f"{name}, line {line_of(node)}: its aliases (*name) stand for more than "
                f"{_YAML_VALUES:,} values"
            )
        return sizes[id(node)]

    size(root, frozenset())


def _refuse_odd_values(node: yaml.Node, name: str) -> None:
    """Refuse what no setting can be and no JSON can hold: dates, bytes, sets, NaN, and the like."""
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind in _ODD:
        way_out = "; put it in quotes if it is text" if kind == "timestamp" else ""
        found = "this" if kind != "timestamp" else node.value[:40]
        raise InputError(f"{name}, line {line_of(node)}: {found} is {_ODD[kind]}{way_out}")
    if not isinstance(node, yaml.ScalarNode) or kind not in ("int", "float"):
        return
    read = yaml.constructor.SafeConstructor()
    if kind == "float":
        value = read.construct_yaml_float(node)
        found = "" if math.isfinite(value) else str(value)
    else:
        bits = int(read.construct_yaml_int(node)).bit_length()
        found = "" if bits < 64 else f"one of {bits} bits"
    if found:
        raise InputError(f"{name}, line {line_of(node)}: expected a finite number, found {found}")


def _refuse_double_keys(node: yaml.MappingNode, name: str) -> None:
    seen: dict[str, int | None] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise InputError(
                    f"{name}, line {line_of(key)}: key {key.value!r} is given twice "
                    f"(first in line {seen[key.value]})"
                )
            seen[key.value] = line_of(key)
