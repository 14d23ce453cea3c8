"""The recipe: the one YAML a user writes, read into checked settings.

Errors name the key, its line, and the nearest key that exists.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from surgekit.adapters.files import check_adapter_name
from surgekit.errors import InputError
from surgekit.merging.config import absolute_paths
from surgekit.models.source import ModelSource
from surgekit.surgery.config import (
    CalibrationConfig,
    EntropyMean,
    LossName,
    ModuleName,
    RidgeRule,
    SurgeryConfig,
    TextPart,
)

# Names that results.json and the run directory use beside those of domains.
RESERVED_NAMES = ("base", "merged", "plain", "method")
_DOMAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PromptSet(_Strict):
    """A JSONL file of prompts.

    Attributes:
        file: path, relative to the recipe.
        items: how many to use; of a calibration file they are drawn by the seed, of others the
            first ones are taken. None means all.
    """

    file: str
    items: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value


class Domain(_Strict):
    """One domain: its expert, and its three sets of prompts.

    Attributes:
        expert: a LoRA on the base, a folder, a hub id, a GGUF file.
        format: ``chat``, ``plain``, or a jinja template.
        calibration: what modules are fitted on.
        validation: what methods are chosen on; without it, the last fifth of the calibration file
            is set aside for that.
        test: what is reported.
        tasks: lm-eval tasks.
    """

    expert: ModelSource
    format: str = "chat"
    calibration: PromptSet
    validation: PromptSet | None = None
    test: PromptSet
    tasks: list[str] = Field(default_factory=list)


def _domain_name(name: str) -> str:
    if name in RESERVED_NAMES or not _DOMAIN_NAME.fullmatch(name):
        raise ValueError(
            "expected a domain's name of letters, digits, - and _, beginning with a letter or "
            f"digit, and none of {', '.join(RESERVED_NAMES)}"
        )
    return name


def _many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class SurgerySpec(_Strict):
    """One entry of ``surgery:``; every key may be a list, which means each of its values."""

    module: ModuleName | list[ModuleName]
    loss: LossName | Literal["default"] | list[LossName] | None = "default"
    text: TextPart | list[TextPart] = "both"
    rank: int | list[int | None] | None = None
    max_positions: int | None = None
    iterations: int | list[int] = 500
    learning_rate: float | list[float] = 1e-3
    batch_size: int | list[int] = 16
    entropy_mean: EntropyMean = "dataset"
    ridge: RidgeRule | float | list[RidgeRule | float] = "loo"
    weights: Literal["uniform", "entropy"] = "uniform"
    name: str | None = None

    @field_validator("name")
    @classmethod
    def _fit_for_a_folder(cls, value: str | None) -> str | None:
        try:
            return value if value is None else check_adapter_name(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _some_method(self) -> SurgerySpec:
        # Settings that contradict each other fail in here, with this entry's line.
        if not list(self.methods()):
            raise ValueError("expected at least one value of each key, found an empty list")
        return self

    def methods(self) -> Iterator[Method]:
        """Every combination, with its id."""
        varied = ("module", "loss", "text", "rank", "iterations", "learning_rate", "batch_size")
        keys = (*varied, "ridge")
        several = [k for k in keys[3:] if len(_many(getattr(self, k))) > 1]
        for values in itertools.product(*(_many(getattr(self, k)) for k in keys)):
            setting: dict[str, Any] = dict(zip(keys, values, strict=True))
            calibration = CalibrationConfig(
                loss=setting["loss"],
                text=setting["text"],
                iterations=setting["iterations"],
                learning_rate=setting["learning_rate"],
                batch_size=setting["batch_size"],
                entropy_mean=self.entropy_mean,
                ridge=setting["ridge"],
                weights=self.weights,
            )
            loss = calibration.loss_for(setting["module"])
            calibration = calibration.model_copy(update={"loss": loss})
            identifier = setting["module"] + (f"-{loss}" if loss else "") + f"@{setting['text']}"
            identifier += "".join(f"+{k}={setting[k]}" for k in several)
            method = Method(
                self.name or identifier,
                setting["module"],
                setting["rank"],
                self.max_positions,
                calibration,
            )
            method.config(hidden_size=1 << 30)  # sizes that contradict each other fail here
            yield method


@dataclass(frozen=True)
class Method:
    """One way of surgery: an id, a form, and how it is calibrated (its seed is set per run)."""

    id: str
    module: ModuleName
    rank: int | None
    max_positions: int | None
    calibration: CalibrationConfig

    def config(self, hidden_size: int) -> SurgeryConfig:
        """The module's configuration for a model of that width."""
        return SurgeryConfig(
            module=self.module,
            hidden_size=hidden_size,
            rank=self.rank,
            max_positions=self.max_positions,
        )


def _default_surgery() -> list[SurgerySpec]:
    return [
        SurgerySpec(module="mean-shift"),
        SurgerySpec(module="standard", loss="l1"),
        SurgerySpec(module="darts", loss="ewl1"),
        SurgerySpec(module="linear"),
    ]


class Recipe(_Strict):
    """All that ``surgekit run`` needs to know.

    Attributes:
        base: the model the experts were tuned from.
        domains: by name.
        merge: mergekit's YAML, inline or as a path, or ``{folder: PATH}`` for a merge at hand.
        surgery: the methods to try.
        seeds: one run of every method each; a seed draws calibration items, order and start.
        plain_text: text of no domain, to see what a correction does to it.
        max_length: tokens a sequence is cut at.
        batch_size: sequences a forward pass holds; recorded, for figures move with it.
        dtype: in which models are loaded and states are kept.
        device: ``cpu``, ``cuda``, ``auto``.
        position_bin: width of the position bins of the bias.
        body, head: names of the model's parts, where the search for them fails.
    """

    base: ModelSource
    domains: dict[Annotated[str, AfterValidator(_domain_name)], Domain] = Field(min_length=1)
    merge: dict[str, Any] | str
    surgery: list[SurgerySpec] = Field(default_factory=_default_surgery, min_length=1)
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1)
    plain_text: PromptSet | None = None
    max_length: int = Field(default=512, ge=2)
    batch_size: int = Field(default=8, ge=1)
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    device: str = "cpu"
    position_bin: int = Field(default=32, ge=1)
    body: str | None = None
    head: str | None = None

    @field_validator("merge")
    @classmethod
    def _folder_alone(cls, value: dict[str, Any] | str) -> dict[str, Any] | str:
        given = value.get("folder", "") if isinstance(value, dict) else ""
        if not isinstance(given, str) or (given and len(value) > 1):
            raise ValueError("a merge at hand is given as {folder: PATH} and nothing else")
        return value

    @field_validator("base")
    @classmethod
    def _whole_base(cls, value: ModelSource) -> ModelSource:
        if value.needs_base:
            raise ValueError("the base cannot be a LoRA alone")
        return value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value) or min(value) < 0:
            raise ValueError(f"expected distinct seeds from 0 up, found {value}")
        return value

    @field_validator("surgery")
    @classmethod
    def _distinct_ids(cls, value: list[SurgerySpec]) -> list[SurgerySpec]:
        ids = [m.id for spec in value for m in spec.methods()]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"two methods are called {twice[0]!r}; give one of them a name")
        return value

    def methods(self) -> list[Method]:
        """All methods in the order of the recipe, each with an id of its own."""
        return [m for spec in self.surgery for m in spec.methods()]

    @property
    def merged_folder(self) -> str | None:
        """The folder of a merge the user brings, or None where mergekit makes it."""
        return self.merge.get("folder") if isinstance(self.merge, dict) else None


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe; paths in it become absolute, taken from the recipe's folder.

    Raises:
        InputError: no such file, broken YAML, or a wrong key or value, named with its line.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"recipe not found: {file}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: expected a UTF-8 YAML file ({error})") from error
    return parse_recipe(text, file.resolve().parent, str(file))


def parse_recipe(text: str, folder: Path, name: str = "recipe") -> Recipe:
    """Check a recipe's text; paths are taken from ``folder``."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{name}{where}: not YAML ({problem})") from error
    except (ValueError, RecursionError) as error:  # 2020-13-45; a thousand open brackets
        raise InputError(f"{name}: not YAML that can be read ({error})") from error
    if not isinstance(document, dict):
        raise InputError(f"{name}: expected a mapping with base, domains and merge")
    _refuse_double_keys(root, name)
    try:
        recipe = Recipe.model_validate(document)
    except ValidationError as error:
        raise InputError(_first_problem(error, root, name)) from error
    try:
        return _absolute(recipe, folder)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL; the home of an unknown user
        raise InputError(f"{name}: a path in it is none ({error})") from error


def _absolute(recipe: Recipe, folder: Path) -> Recipe:
    def prompts(value: PromptSet | None) -> PromptSet | None:
        if value is None:
            return None
        return value.model_copy(update={"file": _path(value.file, folder)})

    domains = {
        name: domain.model_copy(
            update={
                "expert": domain.expert.relative_to(folder),
                "calibration": prompts(domain.calibration),
                "validation": prompts(domain.validation),
                "test": prompts(domain.test),
            }
        )
        for name, domain in recipe.domains.items()
    }
    merge = recipe.merge
    if isinstance(merge, str):
        merge = _path(merge, folder)
    elif recipe.merged_folder is not None:
        merge = {"folder": _path(recipe.merged_folder, folder)}
    else:
        merge = absolute_paths(merge, folder, ("base", *recipe.domains))
    return recipe.model_copy(
        update={
            "base": recipe.base.relative_to(folder),
            "domains": domains,
            "merge": merge,
            "plain_text": prompts(recipe.plain_text),
        }
    )


def _path(text: str, folder: Path) -> str:
    return str((folder / Path(text).expanduser()).resolve())


def _first_problem(error: ValidationError, root: yaml.Node, name: str) -> str:
    """The first error as one line: key, line, what is wrong, the nearest key."""
    # Of a union pydantic reports every branch; the deepest entry is about what was meant.
    first = max(error.errors(), key=lambda e: (e["type"] == "extra_forbidden", len(e["loc"])))
    path, line = _locate(root, first["loc"])
    where = f"{name}, line {line}: " if line else f"{name}: "
    key = ".".join(str(p) for p in path)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), _known_keys(path[:-1]), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{where}unknown key {key!r}{hint}"
    if first["type"] == "missing":
        return f"{where}key {key!r} is missing"
    message = str(first["msg"]).removeprefix("Value error, ")
    found = "" if isinstance(first.get("input"), (dict, list)) else f", found {first['input']!r}"
    return f"{where}{key + ': ' if key else ''}{message}{found}"


def _is_branch(part: Any) -> bool:
    """True for the parts pydantic adds to a location to tell a union's branches apart."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "none"))


def _known_keys(path: list[Any]) -> list[str]:
    model: type[BaseModel] = Recipe
    for part in path:
        if model is Recipe and part == "domains":
            model = Domain
        elif model is Domain and part in ("calibration", "validation", "test"):
            model = PromptSet
        elif part in ("base", "expert"):
            model = ModelSource
        elif part == "surgery":
            model = SurgerySpec
        elif part == "plain_text":
            model = PromptSet
    return list(model.model_fields)


def _locate(root: yaml.Node, location: tuple[Any, ...]) -> tuple[list[Any], int | None]:
    """(the parts of pydantic's location that are the user's, line of the deepest in the YAML)."""
    node: yaml.Node | None = root
    line = None
    path: list[Any] = []
    for part in location:
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = next(((v, v) for v in node.value[part : part + 1]), None)
        if found is None and _is_branch(part):
            continue  # a domain may be called "int", so the YAML is asked first
        path.append(part)
        node = None if found is None else found[1]
        line = line if found is None else _line_of(found[0])
    return path, line


def _line_of(node: yaml.Node | None) -> int | None:
    return None if node is None or node.start_mark is None else node.start_mark.line + 1


def _refuse_double_keys(node: yaml.Node, name: str, above: tuple[yaml.Node, ...] = ()) -> None:
    if node in above:
        raise InputError(f"{name}, line {_line_of(node)}: this value contains itself")
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise InputError(
                        f"{name}, line {_line_of(key)}: key {key.value!r} is given twice"
                    )
                seen.add(key.value)
            _refuse_double_keys(value, name, above)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_double_keys(value, name, above)
