"""The parameters of notebook 05_arena: each with its range and its meaning. There is no paper to take values from."""

from __future__ import annotations

from typing import ClassVar

from fu_papers.parameters import (
    Count,
    Distinct,
    Inside,
    Natural,
    NotNegative,
    Parameters,
    Positive,
    Several,
    parameter,
)


class ArenaParameters(Parameters):
    """What is run, and how. Every request is served in every setting that it is listed for."""

    paper: ClassVar[str] = "arena"

    settings: Distinct[str] = parameter("data set / split / net")
    requests: Distinct[str] = parameter("who forgets what, in settings split at random (iid)")
    skewed_requests: Several[str] = parameter("the same, in settings whose clients differ in their classes")
    further_places: Several[str] = parameter(
        "data set / split / net, a space and a request; with / world after the net: peers, vertical parties, a backdoor"
    )
    methods: Several[str] = parameter("who takes part; none named: every registered method that works with a server")
    absent: Several[str] = parameter("registered methods that do not take part where none are named")
    models: Count = parameter("N, federations trained with a seed each, and as many retrained", unit="models")
    few_models: Count = parameter("N of settings with convolutional nets", unit="models")
    memory_models: Count = parameter("N of methods that need what was kept during training", unit="models")
    slow_methods: Several[str] = parameter("methods that are judged on no more than slow_models, for what they cost")
    slow_models: Count = parameter("N of those", unit="models")
    further_models: Count = parameter(
        "N in places beyond a plain server, where trainings run one after another", unit="models"
    )
    large_places: Several[str] = parameter(
        "settings, a space and a request: where crowds of large_models, of everybody, show whether fewer say the same"
    )
    large_models: Count = parameter("N of those crowds; more than models", unit="models")
    peers_l2: Positive = parameter("lambda of the peers' loss, which their certified method needs")
    chunk: Count = parameter("models per run: what is resumed, and divided among machines", unit="models")
    clients: Count = parameter("how many hold the data")
    n_train: Natural = parameter("training samples in all; 0 for all there are")
    n_val: Count = parameter("held out of the training set: recovery ends by them, and HF-KCU held-out reads them")
    n_test: Natural = parameter("test samples; 0 for all there are")
    rounds: Count = parameter("federated rounds before the request")
    epochs: Positive = parameter("E, local epochs per round")
    batch_size: Count = parameter("B")
    optimiser: str = parameter("on the clients: sgd, adam or adamw")
    lr: Positive = parameter("eta, the clients' learning rate")
    lr_decay: Positive = parameter("factor of the learning rate per round")
    momentum: NotNegative = parameter("of the clients' SGD")
    weight_decay: NotNegative = parameter("on all parameters")
    augmentation: str = parameter("none, flip_crop or rotate_flip_crop")
    recovery_cap: Count = parameter("recovery ends after so many, if not before", unit="rounds")
    natural_rounds: Count = parameter("of Natural, which no rule stops", unit="rounds")
    longer_rounds: Count = parameter("of the controls that train on for what the dearest steps cost", unit="rounds")
    relearn_requests: Several[str] = parameter("after which of the requests models learn again what they forgot")
    relearn_models: Count = parameter("of each method, that learn again what they forgot", unit="models")
    relearn_cap: Count = parameter("learning again ends after so many", unit="passes over the forgotten data")
    noise: Positive = parameter("of the control Original with noise, in standard deviations of a model's parameters")
    examples: Count = parameter("that judges look at, of each kind: forgotten, retained, never seen")
    resamples: Count = parameter("of models, for intervals")
    delta: Inside = parameter("of the per-example epsilon")


SCHEMA = ArenaParameters  # as the runner finds it
