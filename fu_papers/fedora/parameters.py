"""The parameters of notebook 03_fedora: each with its range, its meaning and the paper's value."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fu_papers.parameters import Count, Distinct, Natural, NotNegative, Parameters, Part, Positive, Share, parameter

Percent = Annotated[int, Field(gt=0, lt=100)]
Momentum = Annotated[float, Field(ge=0, lt=1)]  # from 1 on, steps grow without end
Threshold = Annotated[float, Field(le=1, allow_inf_nan=False)]  # no model can be more uncertain
Split = Annotated[str, Field(pattern=r"^[1-9]\d*(\+[1-9]\d*)*$")]


class FedoraParameters(Parameters):
    """What is run, and how. Lists marked * have one value per data set; ablations and sweeps are made on the last."""

    paper: ClassVar[str] = "fedora"

    datasets: Distinct[str] = parameter("data set / bottom net; ablations and sweeps on the last")
    seeds: Distinct[int] = parameter("training seeds: initial weights and batches")
    classes: list[list[Count]] = parameter("* m, how many classes lose samples, per setting", paper="1 to 100")
    percents: list[list[Percent]] = parameter("* n, how many percent of them, per setting", paper="25 or 50")
    n_train: list[Natural] = parameter("* training samples; 0 for all there are", paper="all")
    n_val: list[Count] = parameter("* held out for the calibrated threshold", unit="samples")
    n_test: list[Natural] = parameter("* test samples; 0 for all there are", paper="all")
    epochs: list[Count] = parameter("* of training and retraining", paper="not given")
    lr: list[Positive] = parameter("* of training", paper="not given, like all that follows without a value")
    batch_size: list[Count] = parameter("* of training and unlearning")
    lr_decay: Positive = parameter("factor of the learning rate per epoch")
    momentum: Momentum = parameter("kept from epoch to epoch")
    weight_decay: NotNegative = parameter("of every party's optimiser")
    threshold: Threshold = parameter("epsilon: the forgetting score asked for, as a share of the largest possible")
    weight: Positive = parameter("beta, the forgetting weight", paper="swept from 0.5 to 20")
    tau: Positive = parameter("first primal step")
    sigma: Positive = parameter("first dual step")
    sigma_vector: Positive = parameter("the same for the element-wise dual, which multiplies two gradients")
    mu: NotNegative = parameter("proximal weight")
    iterations: Count = parameter("T, at most")
    ratio: Share = parameter("rho, share of the retained data passed per iteration", paper="0.05")
    ga_lr: Positive = parameter("step of gradient ascent")
    ga_epochs: Count = parameter("of gradient ascent, over the samples to be forgotten")
    ico_scale: Positive = parameter("kappa, how much of the estimated contribution ICO subtracts")
    ico_share: Part = parameter("gamma, share of the retained data in ICO's refinement")
    cvfu_epochs: Count = parameter("CVFU's epochs over the retained data, at most")
    cvfu_lr: Positive = parameter("CVFU's: its confidences are an epoch old, steps of training's size diverge")
    tuning_trials: Annotated[int, Field(ge=1, le=100)] = parameter(
        "choices of each method's own parameters, the first as published; 1: no tuning"
    )
    tuning_requests: list[Distinct[str]] = parameter("* what is forgotten in the trials, and judged nowhere")
    tuning_seed: Natural = parameter("training seed of the trials, none of those judged")
    ga_lrs: Distinct[Positive] = parameter("GA's steps in the curves of forgetting against utility")
    ico_scales: Distinct[Positive] = parameter("ICO's kappa there")
    cvfu_rounds: Distinct[Count] = parameter("CVFU's epochs there")
    few_shot_lrs: Distinct[Positive] = parameter("few-shot unlearning's steps there")
    sigmas: Distinct[Positive] = parameter("first dual steps there, of the form whose threshold unseen samples set")
    sigmas_vector: Distinct[Positive] = parameter("the same of the element-wise dual, which sees no threshold")
    thresholds: Distinct[Threshold] = parameter("FedORA's epsilon there")
    weights: Distinct[Positive] = parameter("beta in Fig. 8a", paper="0.5 to 20")
    ratios: Distinct[Share] = parameter("rho in Fig. 8b", paper="0 to 1")
    few: Distinct[Count] = parameter("how many samples go in Table VIII", paper="50, 1")
    few_ratios: Distinct[Share] = parameter("rho there", paper="0, 0.01")
    party_noise: Positive = parameter("Table VI: on the first party's images, in units of 0 to 1", paper="not given")
    embedding_noise: Distinct[Positive] = parameter("Table IX", paper="5, 1, 0.5, 0.1")
    clip: Positive = parameter("Table IX: length embeddings are clipped to in the rows with a guarantee", paper="none")
    delta: Part = parameter("of that guarantee", paper="none")
    splits: list[Split] = parameter("passive parties, or columns of each: '4', '1+7'; on the last data set", paper="2")
    known_labels: Count = parameter("labels of each class that a passive party knows, where it infers the others")
    known_features: Count = parameter("samples whose features the active party knows, half of those retained at most")
    repeats: Count = parameter("timings of each method")


SCHEMA = FedoraParameters  # as the runner finds it
