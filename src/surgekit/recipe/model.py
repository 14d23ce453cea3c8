"""What a recipe says: its keys, their types and defaults, and the methods they mean."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from surgekit.adapters.files import check_adapter_name
from surgekit.errors import InputError
from surgekit.files import user_path
from surgekit.models.loading import DTYPES
from surgekit.models.source import ModelSource
from surgekit.surgery.config import (
    MAX_POSITIONS,
    MAX_SEED,
    CalibrationConfig,
    EntropyMean,
    LossName,
    ModuleName,
    RidgeRule,
    SurgeryConfig,
    TextPart,
    ignored,
)

# Names that results.json and the run directory use beside those of domains.
RESERVED_NAMES = ("base", "merged", "plain", "method")
_VARIED = ["module", "loss", "text", "rank", "iterations", "learning_rate", "batch_size", "ridge"]
_MOST_METHODS = 10_000
_DOMAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _fit_for_a_path(text: str) -> str:
    try:
        user_path(text)
    except InputError as error:
        raise ValueError(str(error)) from error
    return text


class PromptSet(_Strict):
    """A JSONL file of prompts.

    Attributes:
        file: path, relative to the recipe.
        items: how many to use; of a calibration file they are drawn by the seed, of others the
            first ones are taken. None means all.
    """

    file: Annotated[str, AfterValidator(_fit_for_a_path)]
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
    max_positions: int | None = Field(default=None, le=MAX_POSITIONS)
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
        many = math.prod(len(_many(getattr(self, key))) for key in _VARIED)
        if many > _MOST_METHODS:
            raise ValueError(
                f"expected at most {_MOST_METHODS:,} methods, found lists that combine to {many:,}"
            )
        # Settings that contradict each other fail in here, with this entry's line.
        methods = list(self.methods())
        count = len(methods)
        if count == 0:
            raise ValueError("expected at least one value of each key, found an empty list")
        if self.name is not None and count > 1:
            raise ValueError(f"name {self.name!r} goes with one method; this entry means {count}")
        # What one method of several reads may stand here; what none reads was meant for another.
        unread: dict[tuple[str, str | None], set[str]] = {}
        for method in methods:
            # Of several values one may be the default, which counts as not given.
            kind = unread.setdefault((method.module, method.calibration.loss), set())
            kind.update(method.calibration.unread_by(method.module))
        for key in sorted(set.intersection(*unread.values())):
            raise ValueError(ignored(key, methods[0].module, methods[0].calibration.loss))
        return self

    def methods(self) -> Iterator[Method]:
        """Every combination, with its id."""
        several = [k for k in _VARIED[3:] if len(_many(getattr(self, k))) > 1]
        for values in itertools.product(*(_many(getattr(self, k)) for k in _VARIED)):
            setting: dict[str, Any] = dict(zip(_VARIED, values, strict=True))
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
        dtype: in which models are loaded and states are kept; bf16, fp16 and fp32 will do.
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

    @field_validator("dtype", mode="before")
    @classmethod
    def _long_name(cls, value: Any) -> Any:
        known = DTYPES.get(value) if isinstance(value, str) else None
        return value if known is None else str(known).removeprefix("torch.")

    @field_validator("merge")
    @classmethod
    def _folder_alone(cls, value: dict[str, Any] | str) -> dict[str, Any] | str:
        given = value.get("folder", "") if isinstance(value, dict) else ""
        if not isinstance(given, str) or (given and len(value) > 1):
            raise ValueError("a merge at hand is given as {folder: PATH} and nothing else")
        _fit_for_a_path(value if isinstance(value, str) else given)
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
        if len(set(value)) != len(value) or min(value) < 0 or max(value) > MAX_SEED:
            raise ValueError(f"expected distinct seeds from 0 to {MAX_SEED}, found {value}")
        return value

    @field_validator("surgery")
    @classmethod
    def _distinct_ids(cls, value: list[SurgerySpec]) -> list[SurgerySpec]:
        counts = Counter(m.id for spec in value for m in spec.methods())
        if counts.total() > _MOST_METHODS:
            raise ValueError(
                f"expected at most {_MOST_METHODS:,} methods, found {counts.total():,}"
            )
        twice = sorted(i for i, count in counts.items() if count > 1)
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
