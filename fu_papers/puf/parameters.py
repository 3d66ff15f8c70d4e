"""The parameters of notebook 01_puf: each with its range, its meaning and the paper's value."""

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
    Share,
    parameter,
)


class PufParameters(Parameters):
    """What is run, and how. The first settings are those of the main block, sections 3 to 7 of the notebook."""

    paper: ClassVar[str] = "puf"

    settings: Distinct[str] = parameter("data set / split / net of sections 3 to 7")
    targets: Distinct[Natural] = parameter("which client asks to be forgotten, one per run")
    seeds: Distinct[int] = parameter("training seeds: initial weights and batches", paper="10 runs")
    clients: Count = parameter("N", paper="10")
    n_train: Natural = parameter("training images in all; 0 for all there are", paper="all")
    n_train_of: dict[str, Natural] = parameter("the same of single data sets, where n_train is not for all")
    n_val: Count = parameter("held out of the training set, for the stop rule", unit="images", paper="the test set")
    n_test: Natural = parameter("test images; 0 for all there are", paper="all")
    rounds: Count = parameter("federated rounds before the request", paper="200")
    epochs: Positive = parameter("E, local epochs per round", paper="1 or 10")
    batch_size: Count = parameter("B", paper="32")
    optimiser: str = parameter("on the clients: sgd, adam or adamw", paper="sgd")
    lr: Positive = parameter("eta, the clients' learning rate", paper="0.1")
    lr_decay: Positive = parameter("factor of the learning rate per round", paper="0.998")
    momentum: NotNegative = parameter("of the clients' SGD", paper="0")
    weight_decay: NotNegative = parameter("on all parameters", paper="0.001 (released code)")
    augmentation: str = parameter("none, flip_crop or rotate_flip_crop", paper="rotate_flip_crop")
    augmented: Several[str] = parameter("data sets whose images are; a flipped digit is none", paper="all")
    eta_u_special: Positive = parameter("eta_u, unlearning rate of PUF-Special", paper="2")
    eta_u_regular: Positive = parameter("eta_u, unlearning rate of PUF-Regular", paper="20")
    epochs_u: Positive = parameter("E_u, the target's epochs when it is unlearned", paper="1")
    recovery_cap: Count = parameter("give up recovery after so many", unit="rounds", paper="30 (released code)")
    patience_settings: Several[str] = parameter("settings where who gives up may run on, first seed")
    patience: dict[str, Count] = parameter("who runs on there, and gives up after so many", unit="rounds")
    natural_rounds: Distinct[Count] = parameter("when Natural is read, which no rule stops", paper="1, 2, 4, 6, 8")
    natural_watched: dict[str, Count] = parameter(
        "how long Natural goes on with single data sets, where PUF needs fewer than it may take",
        unit="rounds",
    )
    relearn_cap: Natural = parameter(
        "passes over the forgotten data until they count as not relearned; 0: not measured"
    )
    tuning_trials: Count = parameter("of each method's hyper-parameters, ours and theirs; 1: as published", paper="1")
    tuning_targets: Distinct[Natural] = parameter("who asks to be forgotten in the trials, one each; nobody judged")
    tuning_seed: int = parameter("of the trainings of the trials; none that is judged")
    tuning_cap: Count = parameter("as recovery_cap, in the trials", unit="rounds")
    history_interval: Natural = parameter("FedEraser stores every so-many-th round; 0: no FedEraser", paper="1")
    history_interval_of: dict[str, Count] = parameter("the same of data sets or settings, where it is not for all")
    calibration: Positive = parameter("FedEraser's E_cal as a fraction of E", paper="0.5")
    pga_lr: Positive = parameter("learning rate of PGA's ascent", paper="0.01")
    pga_epochs: Positive = parameter("of PGA's ascent", paper="5")
    pga_batch_size: Count = parameter("of PGA's ascent", paper="512, about 10 steps an epoch")
    pga_stop: Positive = parameter("PGA ends so far from the target's model", paper="6.5, or 9 under IID")
    mode_lambda: Share = parameter("MoDe's momentum", paper="0.95")
    mode_rounds_d: Natural = parameter("MoDe's degradation", unit="rounds", paper="6")
    mode_rounds_m: Natural = parameter("MoDe's memory guidance", unit="rounds", paper="10")
    mode_lr_guidance: Positive = parameter("MoDe's rate in memory guidance", paper="5e-4")
    mode_lr_target: Positive = parameter("the same, of the client that leaves", paper="0.1 (released code)")
    mode_guidance_momentum: NotNegative | None = parameter(
        "of everybody's SGD in memory guidance; none: the clients'", paper="0"
    )
    fed_au_epochs: Count = parameter("of FedAU's auxiliary head", paper="10")
    official_settings: Several[str] = parameter("of settings: where FedAU is run as its authors have it, too")
    fed_au_alpha: Share = parameter("the auxiliary head's share in the official FedAU", paper="0.9 (its authors)")
    few_seeds: Distinct[int] = parameter("seeds of everything but sections 3 to 7 and Fig. 5")
    long_settings: Several[str] = parameter("settings of section 8: many local epochs")
    long_epochs: Positive = parameter("E there", paper="10")
    long_rounds: Count = parameter("rounds there", paper="200")
    sample_settings: Several[str] = parameter("settings of section 9: a part of each target's samples")
    sample_fraction: Inside = parameter("how much of the target's samples", paper="0.5")
    pair_settings: Several[str] = parameter("settings of section 10: two clients at once")
    pairs: list[Distinct[Natural]] = parameter("which two, one pair per run", paper="five pairs")
    partial_settings: Several[str] = parameter("settings of section 10: only some clients take part in a round")
    partial_share: Inside = parameter("how many of them", paper="all")
    backdoor_settings: Several[str] = parameter("settings of section 10: the client that leaves carries a backdoor")
    transformer_settings: Several[str] = parameter("settings of section 8's MiT-B0: cifar100/dirichlet-0.1/mit_b0_224")
    transformer_rounds: Count = parameter("rounds there", paper="50")
    transformer_optimiser: str = parameter("on the clients there", paper="adamw")
    transformer_lr: Positive = parameter("learning rate there", paper="3e-4")
    transformer_weights: str = parameter("a folder in data/ with a checkpoint of nvidia/mit-b0", paper="ImageNet")
    segmentation_settings: Several[str] = parameter("settings of section 11: one client per hospital")
    segmentation_targets: Several[Natural] = parameter("which hospital leaves, one per run")
    segmentation_n_train: Natural = parameter("training slices in all; 0 for all there are", paper="all")
    segmentation_n_val: Count = parameter("held out", unit="slices")
    segmentation_rounds: Count = parameter("rounds there", paper="500")
    segmentation_cap: Count = parameter("as recovery_cap, if less, there", unit="rounds", paper="30 (released code)")
    segmentation_epochs: Positive = parameter("local epochs there", paper="not said")
    segmentation_batch_size: Count = parameter("B there", paper="16")
    segmentation_optimiser: str = parameter("on the clients there", paper="adam")
    segmentation_lr: Positive = parameter("learning rate there, constant", paper="1e-4")
    segmentation_weight_decay: NotNegative = parameter("weight decay there", paper="1e-4")
    segmentation_special: Several[Positive] = parameter("eta_u of PUF-Special in Fig. 6")
    segmentation_regular: Several[Positive] = parameter("eta_u of PUF-Regular in Fig. 6")
    sweep_settings: Several[str] = parameter("settings of section 12's sweep, Fig. 5, of those above")
    sweep_seeds: Distinct[int] = parameter("seeds there")
    sweep_special: Several[Positive] = parameter("eta_u of PUF-Special there")
    sweep_regular: Several[Positive] = parameter("eta_u of PUF-Regular there")
    sweep_epochs_u: Several[Positive] = parameter("E_u there")
    further_methods: Several[str] = parameter("registered methods that the tables and figures show as well")
    flower: bool = parameter("also run the unlearning round in Flower's simulation, where that is installed")


SCHEMA = PufParameters  # as the runner finds it
