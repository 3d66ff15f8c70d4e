"""The parameters of notebook 02_hf_kcu: each with its range, its meaning and the paper's value."""

from __future__ import annotations

from typing import ClassVar

from fu_papers.parameters import Count, Distinct, Natural, NotNegative, Parameters, Part, Positive, Several, parameter


class HfKcuParameters(Parameters):
    """What is run, and how. The first setting is the paper's main one: all tables but the second are made there."""

    paper: ClassVar[str] = "hf_kcu"

    settings: Distinct[str] = parameter("data set / split / net; the first is the main one", paper="CIFAR-10")
    nets: Several[str] = parameter("further models, on the schedule of nets_*")
    seeds: Distinct[int] = parameter("training seeds: initial weights and batches", paper="5")
    sweep_seeds: Distinct[int] = parameter("seeds of what needs trainings of its own: alpha, clients, nets")
    clients: Count = parameter("N", paper="10")
    n_train: Natural = parameter("training images in all; 0 for all there are", paper="all")
    n_test: Natural = parameter("test images; 0 for all there are", paper="all")
    n_attacker: Count = parameter("held out of the training set: the attacker's own data", unit="images")
    rounds: Count = parameter("federated rounds", paper="20")
    epochs: Positive = parameter("local epochs per round", paper="5")
    batch_size: Count = parameter("B", paper="64")
    optimiser: str = parameter("on the clients: sgd, adam or adamw", paper="sgd")
    lr: Positive = parameter("the clients' learning rate", paper="0.01")
    lr_decay: Positive = parameter("factor of the learning rate per round")
    momentum: NotNegative = parameter("of the clients' SGD", paper="0")
    weight_decay: NotNegative = parameter("on all parameters", paper="0")
    augmentation: str = parameter("none, flip_crop or rotate_flip_crop")
    iters: Count = parameter("k, CG steps", paper="10")
    damping: NotNegative = parameter("lambda of the printed form; the corrected chooses its own", paper="0.01")
    beta: Positive = parameter("adaptive scaling: the clip, off in the corrected form", paper="0.01")
    matrix: str = parameter("of the corrected form: hessian, ggn (Gauss-Newton) or fisher")
    curvature_samples: Natural = parameter("behind each product of the corrected form; 0 for all", unit="images")
    held_out: Count = parameter("of the attacker's own data, for the step whose length they choose", unit="images")
    iters_sweep: Distinct[Count] = parameter("k of the sweep")
    dampings: Distinct[NotNegative] = parameter("lambda of Table 5", paper="0.1, 0.01, 0.001")
    betas: Distinct[Positive] = parameter("the clips of the sweep")
    alphas: Distinct[Positive] = parameter("Dirichlet concentrations of Table 6", paper="0.1, 0.5, 1.0")
    client_counts: Distinct[Count] = parameter("N of Table 7", paper="10, 100, 200")
    shadows: Count = parameter("the attacker's federations")
    shards: Count = parameter("of SISA")
    history_interval: Count = parameter("FedEraser stores every so-many-th round")
    calibration: Part = parameter("FedEraser's share of local training")
    ga_epochs: Count = parameter("of NaiveGA", paper="10")
    tuning_trials: Count = parameter("choices of its own hyper-parameters for every method; 1: as published")
    tuning_seed: Natural = parameter("training seed of the trials, none that is judged")
    tuning_client: Count = parameter("who leaves in the trials; client 0 is judged")
    natural_rounds: Distinct[Count] = parameter("ordinary rounds without the client, of the curve of prices")
    longest_sequence: Count = parameter("clients that leave one after the other, at most")
    peers: Several[str] = parameter("other curvature methods on the main setting: Last layer, ...")
    poison_fraction: Part = parameter("of client 0's images carry the trigger", paper="0.5")
    trigger_size: Count = parameter("side of the white square, bottom right", unit="pixels", paper="not given")
    trigger_target: Natural = parameter("the class that stamped images are called", paper="7")
    nets_n_train: Count = parameter("training images of `nets`")
    nets_n_test: Natural = parameter("test images there; 0 for all there are")
    nets_rounds: Count = parameter("rounds there")
    nets_epochs: Positive = parameter("local epochs there")
    nets_curvature_samples: Natural = parameter("images behind each product there; 0 for all")


SCHEMA = HfKcuParameters  # as the runner finds it
