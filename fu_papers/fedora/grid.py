"""FedORA's grid: which trainings, requests and methods its tables and figures ask for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import model_validator

from fu_core.errors import ConfigError, check_choice
from fu_core.federation.local import ClientOpt
from fu_core.models.bottoms import BOTTOMS
from fu_core.request import Request
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.tuning import trials
from fu_papers.controls import AGAIN, DESTROYED, REFERENCES, other_seed
from fu_papers.fedora.choices import ABLATIONS, QUARTER, READINGS, STEPS, SWEPT
from fu_papers.fedora.parameters import FedoraParameters
from fu_papers.fedora.problem import HALVES
from fu_papers.problems import plain_fields
from fu_papers.study import Cell

# The default; with the divergence whose gradient does not vanish where a model is sure (errata F2); the paper's
# element-wise dual; and a threshold that retraining could meet: what samples of the same classes that were held out
# already show (errata F1). The last has no meaning where whole classes go.
FORMS = ("FedORA", "FedORA reverse", "FedORA vector", "FedORA calibrated")
ELEMENT_WISE = "element-wise dual"  # among the readings
NO_THRESHOLD = "FedORA vector"  # its dual accumulates gradients, whatever the score (errata F3)
BASELINES = ("GA", "ICO", "CVFU")
METHODS = (*BASELINES, *FORMS)
# Beside them in Tables IV and V, tuned alike; the paper does not compare with them, and so no claim does.
PEERS = ("Few-shot",)
LEAKING = ("FedORA", "FedORA reverse", "GA")  # whose models are asked, beside the controls, what their border leaks
BINARY = ("breast_cancer", "adult")  # label unlearning would leave one class
BACKDOORED = "backdoor"  # the condition of runs whose samples to be forgotten carry the trigger
PUBLISHED = "as published"  # the label of runs with a method's own settings, where others are tuned
CONDITIONS = ("noise", "dp_std", "dp_clip", "split")  # of a task, a config, and the frame
PER_DATASET = ("classes", "percents", "n_train", "n_val", "n_test", "epochs", "lr", "batch_size", "tuning_requests")

FEDORA = ("threshold", "weight", "tau", "sigma", "mu", "iterations", "ratio", "batch_size")
OPTIONS = {  # method -> its hyper-parameters that parameters of ours set; the others are what the method registers
    "GA": {"lr": "ga_lr", "epochs": "ga_epochs"},
    "ICO": {"scale": "ico_scale", "share": "ico_share"},
    "CVFU": {"epochs": "cvfu_epochs", "lr": "cvfu_lr"},
    "FedORA": {name: name for name in FEDORA},
    "FedORA reverse": {name: name for name in FEDORA if name not in ("threshold", "tau", "sigma")},
    "FedORA vector": {name: name for name in FEDORA} | {"sigma": "sigma_vector"},
    "FedORA calibrated": {name: name for name in FEDORA},
}


class Task(NamedTuple):
    """What is learnt, and what of it is to be forgotten."""

    dataset: str  # dataset/bottom
    request: str  # "classes-2-50": of classes 1 and 2 half the samples; "samples-50": 50 random ones
    noise: float = 0.0  # on the first party's images: standard deviation in units of 0 to 1
    dp_std: float = 0.0  # on the embeddings
    dp_clip: float = 0.0
    split: str = HALVES  # of the columns among the passive parties

    @property
    def labels(self) -> bool:
        """Do whole classes go?"""
        return Request.parse(self.request).percent == 100

    @property
    def condition(self) -> str:
        """What differs from the plain setting, for a cell: "embedding noise 0.1 clipped to 1"."""
        parts = [f"party noise {self.noise:g}"] if self.noise else []
        if self.dp_std:
            clipped = f" clipped to {self.dp_clip:g}" if self.dp_clip else ""
            parts.append(f"embedding noise {self.dp_std:g}{clipped}")
        if self.split != HALVES:
            parts.append(f"columns {self.split}" if "+" in self.split else f"{self.split} parties")
        return ", ".join(parts)

    def cell(self, group: str, seed: int, method: str, label: str = "") -> Cell:
        """Where the result of one run on it belongs; its poisoned twin's is `twin` of that."""
        return Cell(group, self.dataset, seed, self.request, method, label, self.condition)


def twin(cell: Cell) -> Cell:
    """The place of the same run after a training in which the samples to be forgotten carry a backdoor."""
    return cell._replace(condition=f"{cell.condition}, {BACKDOORED}".removeprefix(", "))


def has_backdoor(cell: Cell) -> bool:
    """Is it the place of a poisoned twin?"""
    return cell.condition.endswith(BACKDOORED)


class Experiment(FedoraParameters):
    """All parameters of notebook 03_fedora, and the runs that they ask for."""

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        """What one value says about another. Raises ConfigError naming them."""
        for name in PER_DATASET:
            if len(given := getattr(self, name)) != len(self.datasets):
                raise ConfigError(f"{name} must have one value per data set ({len(self.datasets)}), got {given}")
        for text, m, n in zip(self.datasets, self.classes, self.percents, strict=True):
            if text.count("/") != 1:
                raise ConfigError(f"datasets must look like 'mnist/cnn', got {text!r}")
            check_choice(f"bottom of {text!r}", text.split("/")[1], BOTTOMS, ConfigError)
            if len(m) != len(n) or not m:
                raise ConfigError(f"classes and percents of {text!r} must be equally many, got {m} and {n}")
        judged = {task.request for labels in (False, True) for task in self.tasks(labels=labels)}
        for request in itertools.chain(*self.tuning_requests):
            Request.parse(request)
            if request in judged:
                raise ConfigError(f"tuning_requests must name none that is judged, got {request!r}")
        if self.tuning_seed in self.seeds:
            raise ConfigError(f"tuning_seed must be none of the seeds {self.seeds}, got {self.tuning_seed}")
        return self

    def value(self, name: str, dataset: str) -> Any:
        """The value of a parameter for a data set, whether it has one for each or one for all."""
        given = getattr(self, name)
        return given[self.datasets.index(dataset)] if name in PER_DATASET else given

    def local(self, dataset: str) -> ClientOpt:
        """Every party's training; `lr_decay` per epoch."""
        names = ("lr", "lr_decay", "momentum", "weight_decay", "batch_size")
        return ClientOpt(**{name: self.value(name, dataset) for name in names})

    # --- tasks -------------------------------------------------------------------------------------------------------

    def sample_tasks(self, dataset: str) -> list[Task]:
        """The paper's settings (m, n) of sample unlearning."""
        m, n = self.value("classes", dataset), self.value("percents", dataset)
        return [Task(dataset, f"classes-{count}-{percent}") for count, percent in zip(m, n, strict=True)]

    def label_tasks(self, dataset: str) -> list[Task]:
        """The same classes with all their samples; none where only one class would be left."""
        if dataset.split("/")[0] in BINARY:
            return []
        return [Task(dataset, f"classes-{count}-100") for count in dict.fromkeys(self.value("classes", dataset))]

    def tasks(self, *, labels: bool) -> list[Task]:
        """Those of all data sets."""
        return [task for d in self.datasets for task in (self.label_tasks(d) if labels else self.sample_tasks(d))]

    @property
    def main(self) -> Task:
        """Where ablations and sweeps are made: the last data set's first setting (the paper's: CIFAR-10, m=2, n=50)."""
        return self.sample_tasks(self.datasets[-1])[0]

    # --- configs of runs ---------------------------------------------------------------------------------------------

    def training(self, task: Task, seed: int, request: str = "none", poison: str = "") -> dict[str, Any]:
        """The config of one `train` run: on what `request` leaves, with the trigger on the samples of `poison`."""
        name, bottom = task.dataset.split("/")
        return {
            "dataset": name,
            "bottom": bottom,
            **{name: self.value(name, task.dataset) for name in ("n_train", "n_val", "n_test")},
            "noise": float(task.noise),
            "dp_std": float(task.dp_std),
            "dp_clip": float(task.dp_clip),
            "split": task.split,
            **plain_fields(self.local(task.dataset)),
            "epochs": self.value("epochs", task.dataset),  # of the whole training
            "seed": seed,
            "request": request,
            "poison": poison,
        }

    def unlearning(
        self, task: Task, seed: int, method: str, *, backdoor: bool = False, **change: Any
    ) -> dict[str, Any]:
        """The config of one `unlearn` run as published; `change` overrides the method's hyper-parameters."""
        training = self.training(task, seed, task.request, task.request if backdoor else "")
        options = self.options(task.dataset, method, **change)
        return {**training, "method": method, "options": options, "trials": [], "tuned_on": [], "change": {}}

    def tuned(self, task: Task, seed: int, method: str, *, backdoor: bool = False, **change: Any) -> dict[str, Any]:
        """The same with the best of the method's trials on its data set; `change` overrides that, too."""
        published = self.unlearning(task, seed, method, backdoor=backdoor, **change)
        return {**published, **self.tuning_of(task.dataset, method, **change)}

    def tuning_of(self, dataset: str, method: str, **change: Any) -> dict[str, Any]:
        """What a run with tuned hyper-parameters chooses among, where, and what of it is fixed: "trials", "tuned_on",
        "change". Trials have neither party noise nor noise on embeddings, and two parties: one choice per data set. A
        method is tried on the requests that it can serve."""
        if (known := self._tried.get((dataset, method))) is None:
            known = self._tried[dataset, method] = self._trials_on(dataset, method)
        tried, on = known
        return {"trials": tried, "tuned_on": on, "change": change if on else {}}

    def _trials_on(self, dataset: str, method: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        tried = self.trials(dataset, method)
        if len(tried) < 2:
            return [], []
        tasks = [Task(dataset, request) for request in self.value("tuning_requests", dataset)]
        on = [self.training(t, self.tuning_seed, t.request) for t in tasks if not refusal(method, t)]
        return (tried, on) if on else ([], [])  # what can be tried on nothing stays as published

    @cached_property
    def _tried(self) -> dict[tuple[str, str], tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
        """(data set, method) -> its trials, and on what: thousands of runs ask, and it is the same for all of them."""
        return {}

    def trials(self, dataset: str, method: str) -> list[dict[str, Any]]:
        """What is tried of a method: equally many choices for each, with all its options; the first as published."""
        if method in (*REFERENCES, AGAIN, DESTROYED) or not registered(method).ranges:
            return []
        published = self.options(dataset, method)
        _, *others = trials(method, self.tuning_trials, seed=self.tuning_seed)
        return [published, *({**published, **one} for one in others)]

    def tuning(self) -> dict[Cell, dict[str, Any]]:
        """Every trial, with the place of its result: the label is the number of the trial."""
        return {
            Cell("tuning", dataset, self.tuning_seed, one["request"], method, str(k // len(of["tuned_on"]))): one
            for dataset, method in itertools.product(self.datasets, (*METHODS, *PEERS))
            for of in [self.tuning_of(dataset, method)]
            for k, one in enumerate(trials_of({**of, "method": method}))
        }

    def options(self, dataset: str, method: str, **change: Any) -> dict[str, Any]:
        """A method's hyper-parameters on a data set; the samples that some want beside them are the run's to give."""
        check_choice("method", method, (*REFERENCES, DESTROYED, *METHODS, *PEERS), ConfigError)
        set_here = {field: self.value(parameter, dataset) for field, parameter in OPTIONS.get(method, {}).items()}
        options = plain_fields(registered(method).configured(**{**set_here, **change}))
        return {name: value for name, value in options.items() if name != "unseen"}

    @property
    def vector(self) -> dict[str, Any]:
        """What differs for the element-wise dual."""
        return {"dual": "vector", "sigma": self.sigma_vector}

    def cells(self) -> dict[Cell, dict[str, Any]]:
        """Every `unlearn` run with the place of its result; a seed's second retraining is another's Retrain run.

        Methods have the best of their trials. What the paper prints a backdoor's success of has a poisoned twin.
        """
        return dict(self._cells)

    @cached_property
    def _cells(self) -> dict[Cell, dict[str, Any]]:
        runs: dict[Cell, dict[str, Any]] = {}

        def add(group: str, task: Task, method: str, label: str = "", *, poison: bool = True, **change: Any) -> None:
            for seed in self.seeds:
                cell = task.cell(group, seed, method, label)
                which = (other_seed(seed, self.seeds), "Retrain") if method == AGAIN else (seed, method)
                runs[cell] = self.tuned(task, *which, **change)
                if poison:
                    runs[twin(cell)] = self.tuned(task, *which, backdoor=True, **change)

        for dataset in self.datasets:
            for task in (*self.sample_tasks(dataset), *self.label_tasks(dataset)):
                for method in (*REFERENCES, AGAIN, *METHODS):
                    if is_for(method, task):
                        add("main", task, method)
                for method in PEERS:  # with a backdoor's labels classes are no longer whole
                    if is_for(method, task):
                        add("main", task, method, poison=False)
        main = self.main
        for method in (*REFERENCES, AGAIN, *METHODS):
            add("noisy", main._replace(noise=self.party_noise), method)
        for group, choices in (
            ("ablation", ABLATIONS | STEPS),
            ("readings", READINGS | {ELEMENT_WISE: self.vector}),
        ):
            for label, change in choices.items():
                add(group, main, "FedORA", label, **change)
        for weight in self.weights:
            add("weights", main, "FedORA", f"{weight:g}", weight=weight)
        for ratio in self.ratios:
            add("ratios", main, "FedORA", f"{ratio:g}", ratio=ratio, passes=0.0)  # as many iterations for all
        for count, ratio in itertools.product(self.few, self.few_ratios):
            add("small", main._replace(request=f"samples-{count}"), "FedORA", f"{ratio:g}", ratio=ratio)
        for count, method in itertools.product(self.few, (*REFERENCES, AGAIN)):
            add("small", main._replace(request=f"samples-{count}"), method)
        for task in self.private_tasks():
            for method in (*REFERENCES, AGAIN, "FedORA"):
                add("private", task, method)
        for task, method in itertools.product(self.split_tasks(), (*REFERENCES, AGAIN, "FedORA")):
            add("parties", task, method, poison=False)
        for task, (method, (name, values)) in itertools.product(self.curve_tasks(), SWEPT.items()):
            for value in getattr(self, values) if is_for(method, task) else ():
                add("curve", task, method, f"{value:g}", poison=False, **{name: value})
        for task, method in itertools.product((*self.tasks(labels=False), *self.tasks(labels=True)), FORMS):
            if is_for(method, task):
                quarter = self.value("epochs", task.dataset) / 4
                add("capped", task, method, QUARTER, poison=False, passes=quarter)
        return runs | self.published(runs)

    def published(self, runs: Mapping[Cell, dict[str, Any]]) -> dict[Cell, dict[str, Any]]:
        """Of the tuned runs of Tables IV to VII and IX, the same as published.

        FedORA's forms with every seed, since what was tuned on clean data may lose a model with a backdoor in it;
        rivals and peers in Tables IV and V, of the first seed.
        """
        return {
            cell._replace(label=PUBLISHED): self.unlearning(
                task_of(cell, config), cell.seed, cell.method, backdoor=has_backdoor(cell)
            )
            for cell, config in runs.items()
            if config["trials"]
            and (
                cell.group in ("main", "noisy", "private")
                if cell.method in FORMS
                else (cell.group, cell.seed) == ("main", self.seeds[0])
            )
        }

    def controls(self) -> dict[Cell, dict[str, Any]]:
        """The `unlearn` runs of random weights, wherever there is a Retrain; they stand for the poisoned twin, too."""
        return {
            cell._replace(method=DESTROYED): self.unlearning(task_of(cell, config), cell.seed, DESTROYED)
            for cell, config in self.cells().items()
            if cell.method == "Retrain"
        }

    def distances(self) -> dict[Cell, dict[str, Any]]:
        """The `distance` runs: how far two of the controls are from Retrain, wherever there is one."""
        runs: dict[Cell, dict[str, Any]] = {}
        for cell, config in self.cells().items():
            if cell.method == "Retrain" and not has_backdoor(cell):
                training = {name: config[name] for name in self.training(self.main, cell.seed)}
                other = {"method": AGAIN, "other_seed": other_seed(cell.seed, self.seeds)}
                runs[cell._replace(method=AGAIN)] = {**training, **other}
                runs[cell._replace(method=DESTROYED)] = {**training, "method": DESTROYED}
        return runs

    def leaks(self) -> dict[Cell, dict[str, Any]]:
        """The `leaks` runs, all on the main setting: whose model the border's attacks look at, and what they know."""
        known = {"known_labels": self.known_labels, "known_features": self.known_features}
        runs = {}
        for seed, method in itertools.product(self.seeds, (*REFERENCES, AGAIN, DESTROYED, *LEAKING)):
            which = (other_seed(seed, self.seeds), "Retrain") if method == AGAIN else (seed, method)
            runs[self.main.cell("leaks", seed, method)] = {**self.tuned(self.main, *which), **known}
        return runs

    def private_tasks(self) -> list[Task]:
        """Table IX: the main setting with noise on the embeddings, and once with clipping, too."""
        levels = [*((std, 0.0) for std in self.embedding_noise), (min(self.embedding_noise), self.clip)]
        return [self.main._replace(dp_std=std, dp_clip=clip) for std, clip in levels]

    def curve_tasks(self) -> list[Task]:
        """Of forgetting against utility: each data set's first setting, and its first with whole classes."""
        return [t for d in self.datasets for t in (*self.sample_tasks(d)[:1], *self.label_tasks(d)[:1])]

    def split_tasks(self) -> list[Task]:
        """The main setting with its columns divided among other parties than two halves."""
        return [self.main._replace(split=split) for split in self.splits]

    def speeds(self) -> dict[Task, dict[str, Any]]:
        """Tables III and VII: the config of a `speed` run of each of the paper's settings; the main one with ablations.

        A run times what "methods" names: a method, its options, and what it chooses among, as in an `unlearn` run.
        """
        runs = {}
        for task in self.tasks(labels=False):
            timed: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in (*BASELINES, "FedORA")}
            if task == self.main:
                timed |= {label: ("FedORA", change) for label, change in ABLATIONS.items()}
            wanted = ("method", "options", "trials", "change")
            configs = {label: self.tuned(task, self.seeds[0], m, **change) for label, (m, change) in timed.items()}
            runs[task] = {
                **self.training(task, self.seeds[0], task.request),
                "methods": {label: {name: config[name] for name in wanted} for label, config in configs.items()},
                "tuned_on": next((config["tuned_on"] for config in configs.values() if config["trials"]), []),
                "repeats": self.repeats,
            }
        return runs


def task_of(cell: Cell, config: Mapping[str, Any]) -> Task:
    """What the run of a `config` at a `cell` is about."""
    return Task(cell.setting, cell.request, *(config[name] for name in CONDITIONS))


def refusal(method: str, task: Task) -> str:
    """Why a method cannot serve a task's request, in its own words; "" if it can."""
    reason = registered(method).refuses.get("classes" if task.labels else "samples", "")
    return reason.removeprefix("forget: ")


def is_for(method: str, task: Task) -> bool:
    """Can a method serve a task, and does it mean anything there? Of whole classes there are no unseen samples."""
    if method in (*REFERENCES, AGAIN):
        return True
    return not refusal(method, task) and not (task.labels and method == "FedORA calibrated")


def trials_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configs of the trials that a tuned run chooses among, each on all requests; none for one as published."""
    return [
        {**on, "method": config["method"], "options": one}
        for one, on in itertools.product(config["trials"], config["tuned_on"])
    ]
