"""What a surgery module is, and how it is calibrated: settings only, no tensors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

ModuleName = Literal["standard", "darts", "add", "parallel", "mean-shift", "table", "linear"]
LossName = Literal["l1", "ewl1", "kl", "ce"]
TextPart = Literal["prompt", "response", "both"]
EntropyMean = Literal["dataset", "sequence", "batch"]
RidgeRule = Literal["loo", "gcv"]

LOW_RANK = ("standard", "darts", "add", "parallel")
POSITIONAL = ("darts", "add", "parallel", "table")
DEFAULT_RANK = 16
DEFAULT_LOSS: dict[str, LossName | None] = {
    "standard": "l1",
    "darts": "ewl1",
    "add": "ewl1",
    "parallel": "ewl1",
    "table": "l1",
    "mean-shift": None,
    "linear": None,
}


MAX_SEED = 2**32 - 1
"""What every generator of random numbers takes, numpy's and mergekit's too."""
MAX_POSITIONS = 1 << 20
"""Rows that a position table may be asked for; more than any model has positions."""


class SurgeryConfig(BaseModel):
    """The shape of a surgery module.

    Attributes:
        module: the form of the correction; see ``surgekit.surgery.modules``.
        hidden_size: d, the width of the hidden states it corrects.
        rank: of the low-rank part (16 by default); for ``linear``, the rank A − I is cut to, or
            None for a whole matrix. Modules without such a part take none.
        max_positions: T_max, rows of the position table; later positions get no position part.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    module: ModuleName
    hidden_size: int = Field(ge=1)
    rank: int | None = Field(default=None, ge=1)
    max_positions: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value, module = dict(value), value.get("module")
        if module in LOW_RANK and value.get("rank") is None:
            value["rank"] = DEFAULT_RANK
        if module in POSITIONAL and value.get("max_positions") is None:
            value["max_positions"] = 512
        return value

    @model_validator(mode="after")
    def _fits(self) -> SurgeryConfig:
        if self.rank is not None and self.module not in (*LOW_RANK, "linear"):
            raise ValueError(f"module {self.module} has no rank")
        if self.rank is not None and self.rank > self.hidden_size:
            raise ValueError(f"rank {self.rank} exceeds the hidden size {self.hidden_size}")
        if self.max_positions is not None and self.module not in POSITIONAL:
            raise ValueError(f"module {self.module} has no position table")
        return self


class CalibrationConfig(BaseModel):
    """How a surgery module is fitted to states.

    Attributes:
        loss: ``l1``, ``ewl1``, ``kl``, ``ce``; None for the closed forms (``linear`` always,
            ``mean-shift`` unless a loss is named); unset means the module's own.
        text: the tokens it is fitted on.
        iterations, learning_rate, batch_size: of Adam; the batch counts prompts.
        seed: draws the order of the prompts and the initial weights.
        entropy_mean: what an entropy is divided by to give a weight: the mean over all tokens
            used, over its own sequence, or over the batch.
        ridge: for ``linear``: leave-one-prompt-out (``loo``), generalised cross-validation
            (``gcv``), or a number, as a multiple of the mean eigenvalue of the states' scatter.
        weights: for ``linear``: all tokens alike, or by entropy as in ``ewl1``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss: LossName | Literal["default"] | None = "default"
    text: TextPart = "both"
    iterations: int = Field(default=500, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0, le=1e38, allow_inf_nan=False)
    batch_size: int = Field(default=16, ge=1)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    entropy_mean: EntropyMean = "dataset"
    ridge: RidgeRule | float = "loo"
    weights: Literal["uniform", "entropy"] = "uniform"

    @model_validator(mode="after")
    def _ridge_positive(self) -> CalibrationConfig:
        if not isinstance(self.ridge, str) and not 0 < self.ridge < float("inf"):
            raise ValueError(f"ridge must be positive and finite, found {self.ridge}")
        return self

    def unread_by(self, module: str) -> list[str]:
        """Settings other than the default that a module does not read, in this configuration.

        ``seed`` is left out: it goes with a run, and a closed form is the same for every seed.
        """
        loss = self.loss_for(module)
        read: set[str] = {"loss", "text", "seed"}
        if loss is not None:
            read |= {"iterations", "learning_rate", "batch_size"}
        elif module == "linear":
            read |= {"ridge", "weights"}
        if loss == "ewl1" or (module == "linear" and self.weights == "entropy"):
            read.add("entropy_mean")
        fields = type(self).model_fields
        return [k for k in fields if k not in read and getattr(self, k) != fields[k].default]

    def loss_for(self, module: str) -> LossName | None:
        """The loss a module is trained with, None where it is solved in closed form.

        Raises:
            ValueError: a loss for ``linear``, or none for a module that has no closed form.
        """
        if self.loss == "default":
            return DEFAULT_LOSS[module]
        if module == "linear" and self.loss is not None:
            raise ValueError("module linear is solved in closed form and takes no loss")
        if self.loss is None and DEFAULT_LOSS[module] is not None:
            raise ValueError(f"module {module} has no closed form; give it a loss")
        return self.loss


def ignored(setting: str, module: str, loss: str | None) -> str:
    """What to say of a setting that nothing reads."""
    how = f"trained with {loss}" if loss else "solved in closed form"
    return f"module {module} is {how} and takes no {setting}; leave it out"
