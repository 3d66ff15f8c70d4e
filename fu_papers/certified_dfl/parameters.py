"""The parameters of notebook 04_certified_dfl: each with its range, its meaning and the paper's value.

Those whose meaning begins with * have one value per data set.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fu_papers.parameters import Count, Distinct, Inside, Natural, NotNegative, Parameters, Positive, Several, parameter


class CertifiedDflParameters(Parameters):
    """What is run, and how. Data sets are combined with every split and every topology, as in Tables I to IV."""

    paper: ClassVar[str] = "certified_dfl"

    datasets: Distinct[str] = parameter("data set / net; the first is the convex one", paper="MNIST, F-MNIST, CIFAR-10")
    splits: Distinct[str] = parameter("who holds what", paper="iid, dirichlet-0.3")
    topologies: Distinct[str] = parameter("also complete, star, torus", paper="ring, erdos_renyi")
    main_only: Several[str] = parameter("data sets at the first split and the last topology alone")
    seeds: Distinct[int] = parameter("training seeds: initial weights and batches")
    n_train: list[Natural] = parameter("* training samples in all; 0 for all there are", paper="all")
    n_test: list[Natural] = parameter("* test samples; 0 for all there are", paper="all")
    rounds: list[Count] = parameter("* K, rounds of training and of retraining", paper="by convergence")
    lr: list[Positive] = parameter("* the clients' learning rate", paper="0.001")
    lr_decay: list[Positive] = parameter("* factor of the learning rate per round")
    momentum: list[NotNegative] = parameter("* of the clients' SGD")
    batch_size: list[Count] = parameter("* B", paper="100")
    epochs: list[Positive] = parameter("* local epochs per round", paper="1")
    l2: list[NotNegative] = parameter("* lambda: strong convexity", paper="not given")
    curvature: list[str] = parameter("* of the corrected form")
    printed_curvature: list[str] = parameter("* of the printed form", paper="hessian or fisher")
    damping: list[NotNegative] = parameter("* of both forms", paper="none")
    curvature_samples: list[Natural] = parameter(
        "* behind curvatures of the corrected form; 0 for all retained ones", unit="samples"
    )
    printed_samples: list[Natural] = parameter(
        "* behind the printed form's, of all clients together; 0 for all", paper="all", unit="samples"
    )
    clients: Annotated[int, Field(ge=3)] = parameter("N", paper="10")
    edge_probability: Positive = parameter("of the Erdős-Rényi graph", paper="not given")
    order: str = parameter('"cta": the step is taken before mixing, "atc": it is mixed, too', paper="cta")
    fraction: Inside = parameter("sample-wise: of every client's samples", paper="0.1")
    forget_class: Natural = parameter("class-wise: which class goes", paper="0")
    leaving: Natural = parameter("client-wise: who leaves", paper="a random client")
    sequence: Count = parameter("Fig. 1: requests one after the other", paper="3")
    sequence_fraction: Inside = parameter("of every client's samples in all of them", paper="0.2")
    net_gradient: str = parameter("on nets: what a corrected step starts from, see NET_CHOICES", paper="forgotten")
    net_choices: Several[str] = parameter("on nets: kinds of requests for which DU's choices are compared, one seed")
    pdudt_rounds: list[Count] = parameter("* Fig. 1, 2: rounds after an unlearning step", paper="up to 200 for PDUDT")
    epsilons: Distinct[Positive] = parameter("of the certificates", paper="not given")
    delta: Inside = parameter("of the certificates", paper="not given")
    budget: Positive = parameter("the distance to retraining that their noise is to cover")
    first_budget: Positive = parameter("the same where noise comes first: the whole way from the trained model")
    full_steps: Count = parameter("of gradient descent on all data, which other certified methods train with")
    peer_l2: Distinct[Positive] = parameter("certified peers: lambda")
    peer_fractions: Distinct[Inside] = parameter("certified peers: of every client's samples, what goes")
    peer_seeds: Distinct[int] = parameter("certified peers: training seeds, and of the noise")
    timed_rounds: Count = parameter("Fig. 2: rounds of retraining that are timed")
    head_rounds: Count = parameter("certified heads: rounds of training a net's head on fixed features")
    close_budget: Positive = parameter("certified heads and scale: how close to retraining Newton steps come")
    scale_clients: Distinct[Annotated[int, Field(ge=3)]] = parameter("scale: N, convex data set, Erdős-Rényi")
    scale_rounds: Count = parameter("scale: rounds of training and of retraining")
    audit_draws: Annotated[int, Field(ge=32, multiple_of=32)] = parameter("audits: whole releases per world")
    audit_cases: Count = parameter("audits: so many of theory_whole.CASES")
    audit_tight: Count = parameter("audits: times as many releases where a claim is hardly more than the truth")


SCHEMA = CertifiedDflParameters  # as the runner finds it
