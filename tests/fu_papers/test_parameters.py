"""Parameters live once: a schema checks profiles and readers' values alike, and says what is wrong in one sentence."""

from importlib import resources
from typing import ClassVar

import pytest
from pydantic import model_validator

from fu_core.errors import ConfigError
from fu_papers import parameters
from fu_papers.parameters import (
    Count,
    Distinct,
    Inside,
    Natural,
    NotNegative,
    Parameters,
    Positive,
    Several,
    Share,
    load_profile,
    parameter,
    profiles,
    read_yaml,
)

GIVEN = {
    "rounds": 3, "n_test": 0, "lr": 0.1, "decay": 0.0, "share": 1.0, "part": 0.5, "mode": "special", "augment": False,
    "seeds": [1, 2], "etas": [],
}  # fmt: skip


class Toy(Parameters):
    """One parameter of every kind."""

    paper: ClassVar[str] = "toy"

    rounds: Count = parameter("before the request", paper="200", unit="rounds")
    n_test: Natural = parameter("test images")
    lr: Positive = parameter("learning rate", paper="0.1")
    decay: NotNegative = parameter("weight decay")
    share: Share = parameter("of everything")
    part: Inside = parameter("some, not all")
    mode: str = parameter("how")
    augment: bool = parameter("flips")
    seeds: Distinct[int] = parameter("of the trainings")
    etas: Several[Positive] = parameter("to be tried")

    @model_validator(mode="after")
    def _fits_together(self):
        if self.rounds < len(self.seeds):
            raise ConfigError(f"rounds must be as many as seeds, got {self.rounds}")
        return self


@pytest.fixture(autouse=True)
def toy_profile(tmp_path, monkeypatch):
    """`quick` is the toy's only profile."""
    folder = tmp_path / "toy" / "profiles"
    folder.mkdir(parents=True)
    (folder / "quick.yaml").write_text("\n".join(f"{name}: {value}".lower() for name, value in GIVEN.items()))
    real = resources.files
    monkeypatch.setattr(parameters.resources, "files", lambda name: tmp_path if name == "fu_papers" else real(name))
    return folder / "quick.yaml"


def toy(**change):
    return Toy(**{"profile": "test", **GIVEN, **change})


def test_values_are_kept_and_whole_numbers_become_floats_where_floats_are_meant():
    values = dict(toy(lr=1, etas=[2, 0.5]))
    assert values == {"profile": "test", **GIVEN, "lr": 1.0, "etas": [2.0, 0.5]}
    assert [type(value) for value in (values["lr"], *values["etas"])] == [float] * 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": 0}, "rounds must be greater than or equal to 1, got 0"),
        ({"rounds": 2.0}, "rounds must be a valid integer, got 2.0"),
        ({"rounds": True}, "rounds must be a valid integer, got True"),
        ({"rounds": "3"}, "rounds must be a valid integer, got '3'"),
        ({"rounds": None}, "rounds must be a valid integer, got None"),
        ({"n_test": -1}, "n_test must be greater than or equal to 0, got -1"),
        ({"lr": 0}, "lr must be greater than 0, got 0"),
        ({"lr": float("inf")}, "lr must be a finite number, got inf"),
        ({"lr": float("nan")}, "lr must be a finite number, got nan"),
        ({"lr": "high"}, "lr must be a valid number, got 'high'"),
        ({"lr": True}, "lr must be a valid number, got True"),
        ({"decay": -1e-9}, "decay must be greater than or equal to 0, got -1e-09"),
        ({"share": 1.1}, "share must be less than or equal to 1, got 1.1"),
        ({"share": -0.1}, "share must be greater than or equal to 0, got -0.1"),
        ({"part": 1.0}, "part must be less than 1, got 1.0"),
        ({"part": 0.0}, "part must be greater than 0, got 0.0"),
        ({"mode": 3}, "mode must be a valid string, got 3"),
        ({"augment": 1}, "augment must be a valid boolean, got 1"),
        ({"seeds": []}, "seeds must list at least one value, got []"),
        ({"seeds": [1, 1]}, "seeds must list each value once, got [1, 1]"),
        ({"seeds": 1}, "seeds must be a valid list, got 1"),
        ({"seeds": [1, "x"]}, "seeds must be a valid integer, got 'x'"),
        ({"etas": [0.5, 0.5]}, "etas must list each value once, got [0.5, 0.5]"),
        ({"etas": [0.5, -1.0]}, "etas must be greater than 0, got -1.0"),
        ({"rounds": 1}, "rounds must be as many as seeds, got 1"),
        ({"ronds": 2}, "toy has no parameter 'ronds'; did you mean 'rounds'?; it has: rounds, n_test, lr"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_it(change, says):
    with pytest.raises(ConfigError) as info:
        toy(**change)
    assert str(info.value).startswith(says)
    assert "\n" not in str(info.value)


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match="lr is missing: the profile of toy must give it"):
        Toy(profile="test", **{name: value for name, value in GIVEN.items() if name != "lr"})


def test_a_profile_gives_the_values_and_changes_go_on_top_unless_they_are_none():
    made = Toy.of("quick", rounds=7, seeds=None)
    assert dict(made) == {"profile": "quick", **GIVEN, "rounds": 7}


def test_a_changed_copy_is_checked_again():
    made = toy()
    assert made.changed(rounds=9).rounds == 9
    assert made.rounds == 3
    with pytest.raises(ConfigError, match="rounds must be as many as seeds, got 2"):
        made.changed(rounds=2, seeds=[1, 2, 3])
    with pytest.raises(Exception, match="frozen"):
        made.rounds = 4


def test_misspelt_changes_name_the_nearest_and_where_they_stand():
    with pytest.raises(ConfigError, match=r"changes: toy has no parameter 'sedes'; did you mean 'seeds'\?"):
        Toy.of("quick", sedes=[1])
    with pytest.raises(ConfigError, match="-p: profile is not set here but with --profile"):
        Toy.check_names({"profile": "paper"}, "-p")


def test_the_table_has_value_unit_paper_and_meaning_of_each():
    table = toy(etas=[]).table().set_index("parameter")
    assert list(table.index) == ["profile", *GIVEN]
    assert table.loc["rounds"].tolist() == ["3", "rounds", "200", "before the request"]
    assert table.loc["seeds", "value"] == "1, 2"
    assert table.loc["etas", "value"] == "none"


# --- profiles ---


def test_an_unknown_profile_and_a_paper_without_any_are_named(toy_profile):
    assert profiles("toy") == ["quick"]
    with pytest.raises(ConfigError, match=r"toy has no profile 'quik'; did you mean 'quick'\?; there are: quick"):
        load_profile("toy", "quik")
    toy_profile.unlink()
    with pytest.raises(ConfigError, match="there are: none yet"):
        load_profile("toy", "quick")
    assert profiles("nothing") == []


@pytest.mark.parametrize("text", ["- 1", "3", ""])
def test_a_profile_is_flat(toy_profile, text):
    toy_profile.write_text(text)
    with pytest.raises(ConfigError, match=r"toy/quick\.yaml must consist of lines `name: value`"):
        load_profile("toy", "quick")


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("-2E5", -2e5), ("1.5e3", 1500.0), ("[1, x]", [1, "x"])])
def test_yaml_reads_numbers_as_scientists_write_them(text, value):
    assert read_yaml(text, "here") == value


@pytest.mark.parametrize("text", ["[1", "2001-13-45", "!!bool maybe", "[" * 2000, "9" * 5000])
def test_what_is_no_yaml_is_one_line_that_says_where(text):
    with pytest.raises(ConfigError, match=r"^here is not YAML: ") as info:
        read_yaml(text, "here")
    assert "\n" not in str(info.value)
