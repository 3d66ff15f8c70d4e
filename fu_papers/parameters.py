"""Parameters that live once: a typed schema per paper, from which profiles, notebooks and the runner take everything.

    class Experiment(Parameters):
        paper: ClassVar[str] = "puf"
        lr: Positive = parameter("clients' learning rate eta", paper="0.1")
        seeds: Distinct[int] = parameter("training seeds: initial weights and batches")

    e = Experiment.of("laptop", seeds=[0])        the profile's values, and what is changed

A profile (fu_papers/<paper>/profiles/<profile>.yaml) gives every value; names and ranges are checked here, for it as
for a reader's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any, ClassVar, Self, TypeVar

import pandas as pd
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fu_core.errors import ConfigError, nearest

T = TypeVar("T")
SIZES = ("quick", "laptop", "workstation", "paper")  # profiles, the smallest first


def _each_once(values: list[Any]) -> list[Any]:
    if any(value in values[:position] for position, value in enumerate(values)):
        raise ValueError("must list each value once")
    return values


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]  # both ends included
Part = Annotated[float, Field(gt=0, le=1)]  # some of it, or all
Inside = Annotated[float, Field(gt=0, lt=1)]  # neither
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Distinct = Annotated[list[T], Field(min_length=1), AfterValidator(_each_once)]  # at least one value, each once
Several = Annotated[list[T], AfterValidator(_each_once)]  # the same, or none


def parameter(meaning: str, *, paper: str = "", unit: str = "") -> Any:
    """A parameter: one line of meaning, the paper's value where it has one, the unit. Values come from the profile."""
    return Field(description=meaning, json_schema_extra={"paper": paper, "unit": unit})


class Parameters(BaseModel):
    """All parameters of a paper's notebook. Immutable; every value is checked when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    paper: ClassVar[str] = ""

    profile: str = Field(description="where results go: figures/<profile>", json_schema_extra={"paper": "", "unit": ""})

    def __init__(self, **values: Any) -> None:
        """Raises ConfigError that names the parameter, what was given and what is allowed."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_told(error.errors()[0], type(self))) from error

    @classmethod
    def of(cls, profile: str, **changes: Any) -> Self:
        """The profile's values, with those of `changes` that are not None."""
        given = {name: value for name, value in changes.items() if value is not None}
        cls.check_names(given, "changes")
        return cls(**{**load_profile(cls.paper, profile), **given, "profile": profile})

    @classmethod
    def check_names(cls, values: Mapping[str, Any], where: str) -> None:
        """Raise ConfigError, naming the nearest, for a name that is no parameter."""
        for name in values:
            if name == "profile":
                raise ConfigError(f"{where}: profile is not set here but with --profile")
            if name not in cls.model_fields:
                known = [known for known in cls.model_fields if known != "profile"]
                raise ConfigError(
                    f"{where}: {cls.paper} has no parameter {name!r}{nearest(name, known)}; it has: {', '.join(known)}"
                )

    def changed(self, **changes: Any) -> Self:
        """The same parameters with other values, checked again."""
        return type(self)(**{**dict(self), **changes})

    def table(self) -> pd.DataFrame:
        """Every parameter: its value, the paper's, and what it means."""
        rows = []
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            assert isinstance(extra, dict)
            value = getattr(self, name)
            rows.append(
                {
                    "parameter": name,
                    "value": _shown(value),
                    "unit": extra["unit"],
                    "paper": extra["paper"],
                    "meaning": field.description,
                }
            )
        return pd.DataFrame(rows)


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _told(error: Mapping[str, Any], schema: type[Parameters]) -> str:
    """One sentence for pydantic's first complaint."""
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "missing":
        return f"{name} is missing: the profile of {schema.paper} must give it"
    if error["type"] == "extra_forbidden":
        known = [known for known in schema.model_fields if known != "profile"]
        return f"{schema.paper} has no parameter {name!r}{nearest(name, known)}; it has: {', '.join(known)}"
    if error["type"] == "too_short":
        return f"{name} must list at least one value, got {error['input']!r}"
    said = error["msg"].removeprefix("Value error, ")
    said = re.sub(r"^(Input|List) should ", "must ", said)
    return f"{name} {said}, got {error['input']!r}" if name else said


# --- profiles --------------------------------------------------------------------------------------------------------


def profiles(paper: str) -> list[str]:
    """The profiles that exist for `paper`."""
    folder = resources.files("fu_papers") / paper / "profiles"
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_profile(paper: str, profile: str) -> dict[str, Any]:
    """The values of a profile file, flat `name: value`. ConfigError for a profile that is not there, or is not flat."""
    if profile not in (available := profiles(paper)):
        raise ConfigError(
            f"{paper} has no profile {profile!r}{nearest(profile, available)}; "
            f"there are: {', '.join(available) or 'none yet'}"
        )
    file, where = resources.files("fu_papers") / paper / "profiles" / f"{profile}.yaml", f"{paper}/{profile}.yaml"
    values = read_yaml(file.read_text(encoding="utf-8"), where)
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must consist of lines `name: value`, got {values!r}")
    return values


class _YamlLoader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as text; scientists write it as a number."""


_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(text: str, where: str) -> Any:
    """The value that a text spells; ConfigError that begins with `where`."""
    try:
        return yaml.load(text, Loader=_YamlLoader)
    # What is YAML and yet no value raises what Python raises: 2001-13-45 is no date, `!!bool maybe` no bool.
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
