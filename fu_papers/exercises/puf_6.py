"""NoT in three lines, registered, and sent to the arena."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

import fu_core
from fu_core.request import Deletion
from fu_core.unlearning.baselines.weight_negation import negate_weights
from fu_core.unlearning.method import Trained, methods
from fu_papers.exercises.draws import Draws
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "puf-6"
NAME = "my NoT"


@cache
def toy() -> fu_core.Federation:
    """Two clients with a few rows each, and a net with one hidden layer."""
    draws = Draws(ID)
    layers = (torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    clients = [(draws.normal(5, 3), draws.whole(0, 2, 5)) for _ in range(2)]
    return fu_core.Federation(fu_core.FlatModel(torch.nn.Sequential(*layers)), clients)


def trials() -> list[Arguments]:
    """trained, deletion, config."""
    f = toy()
    deletions = [fu_core.Request.parse(f"client-{i}").resolve(f.clients) for i in (0, 1)]
    starts = [f.model.init(seed, dtype=torch.float64) for seed in (0, 1)]
    return [(Trained(f, w, rounds=1), deletion, None) for w, deletion in zip(starts, deletions, strict=True)]


def with_layers(*layers: str) -> Callable[..., torch.Tensor]:
    """NoT on those layers."""
    return lambda trained, deletion, config: negate_weights(trained.horizontal.model, trained.model, layers)


def with_biases(trained: Trained, deletion: Deletion, config: object) -> torch.Tensor:
    """Negates the first layer's biases, too."""
    w = trained.model.clone()
    w[: 4 * 3 + 4] *= -1
    return w


def registered(answer: Callable[..., torch.Tensor]) -> str:
    """What is wrong with the registration of an answer that is right by itself."""
    known = methods()
    if NAME in known and known[NAME].serve is answer:
        return ""
    others = [name for name, method in known.items() if method.serve is answer]
    how = f'put `@fu_core.register("{NAME}", paper="mine", colour="#d98cc0")` above it'
    if others:
        return f"The step is right, but registered as {others[0]!r}: {how}, with that very name."
    if NAME in known:
        return f"The step is right, but {NAME!r} is another function, registered before: {how}, and run the cell again."
    return f'The step is right, but not registered: {how}, and `fu_core.unlearn("{NAME}", ...)` will find it.'


EXERCISE = Exercise(
    id=ID,
    title="a method of your own: NoT in three lines",
    stars=2,
    minutes=20,
    statement=r"""
        NoT negates the *weights* (not the biases) of the net's first layer and leaves everything else as it is. Write
        it in three lines, and register it, so that `fu_core.unlearn("my NoT", ...)` serves requests with it and it can
        stand in every table. `trained.model` is the vector $w$; `trained.horizontal.model.views(w)` cuts it into
        tensors *that share its memory*, by name and in the order of the layers. The checker's net has two linear
        layers. Then run the cell after it: it sends your method to the arena, beside NoT.
    """,
    stub="""
        # @fu_core.register("my NoT", paper="mine", colour="#d98cc0")
        def negate_first_layer(trained, deletion, config):
            return ...
    """,
    answer="negate_first_layer",
    solution="""
        @fu_core.register("my NoT", paper="mine", colour="#d98cc0")
        def negate_first_layer(trained, deletion, config):
            w = trained.model.clone()
            next(iter(trained.horizontal.model.views(w).values())).neg_()  # the first tensor is the first weight
            return w
    """,
    trials=trials,
    hints=(
        "Clone first: the views share memory with the vector that they are made of.",
        "`views` is a dictionary in the order of the layers, so its first value is the first layer's weight.",
        "`.neg_()` on that view changes the clone; return the clone, and take the `#` from the decorator.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda trained, deletion, config: trained.model.clone(),
            "The model is as it was: the sign of the first layer's weights did not change.",
        ),
        Mistake("all", lambda trained, deletion, config: -trained.model, "Only the first layer's weights, not all."),
        Mistake("biases", with_biases, "The weights only: the first layer's biases stay as they are."),
        Mistake("last", with_layers("2"), "That is the last layer. NoT negates the first."),
    ),
    commentary="""
        Whoever leaves, the result is the same model: the method does not look at the request at all. That is its
        weakness, and an advantage where the leaving client cannot be asked any more, because it is gone or must not be
        told (`needs=Needs(blind=True)`).
    """,
    reference=with_layers("0"),
    beyond=registered,
    then_text="""
        **In the arena.** Client 3 of five asks to be forgotten by sixteen small models, some seconds of training.
        `left` is what is left of doing nothing's distance from Retrain, in percent, so that the two rows to compare
        yours with are *Original*, 100, and *NoT*: whose row must yours equal?
    """,
    then="""
        from fu_papers.arena import compare

        if "my NoT" in fu_core.methods():
            digits = fu_core.load("digits").subset(n_train=400, seed=0)
            held = fu_core.partition.dirichlet(digits.y_train, 5, alpha=0.3, seed=0)
            clients = [(digits.x_train[rows], digits.y_train[rows]) for rows in held]
            place = fu_core.Federation(fu_core.build("mlp", digits), clients, fu_core.ClientOpt(lr=0.1, batch_size=10))
            frame = compare(place, ["client-3"], ["NoT", "my NoT"], rounds=10, models=16)
            print(frame[["method", "left", "auc", "price", "test"]].round(2).to_string(index=False))
            crowds = frame.attrs["about"]["hashes"]  # of sixteen models each
            print("The very models that NoT makes:", crowds["client-3: my NoT"] == crowds["client-3: NoT"])
        else:
            print("Nobody is registered as 'my NoT' yet.")
    """,
)
