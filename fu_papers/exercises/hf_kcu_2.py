"""A Hessian times a vector, without the Hessian."""

from collections.abc import Callable

import torch
from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "hf_kcu-2"


def small_bowl(w: Tensor) -> Tensor:
    """Half of 2 w_0^2 + 6 w_1^2: its Hessian is diag(2, 6)."""
    return w[0] ** 2 + 3 * w[1] ** 2


def logistic(w: Tensor) -> Tensor:
    """The loss of a logistic regression on twenty rows."""
    x = Draws(ID).normal(20, len(w))
    return torch.nn.functional.softplus(-x @ w).mean() + 0.05 * w @ w


def trials() -> list[Arguments]:
    """A loss, w (d,), v (d,)."""
    draws = Draws(f"{ID}, vectors")
    return [(small_bowl, numbers(1, 1), numbers(1, -1)), (logistic, draws.normal(4), draws.normal(4))]


def gradient(loss: Callable[[Tensor], Tensor], w: Tensor, *, graph: bool = False) -> tuple[Tensor, Tensor]:
    """A copy of w, and the gradient of a loss there; with its graph, to be differentiated once more."""
    w = w.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(w), w, create_graph=graph)
    return w, found


def product(loss: Callable[[Tensor], Tensor], w: Tensor, v: Tensor) -> Tensor:
    """The Hessian of a loss at w, times v."""
    w, found = gradient(loss, w, graph=True)
    return torch.autograd.grad(v @ found, w)[0]


EXERCISE = Exercise(
    id=ID,
    title="a Hessian times a vector",
    stars=2,
    minutes=20,
    statement=r"""
        For a net with a million parameters the Hessian $H$ has $10^{12}$ entries. Its product with a vector needs none
        of them, by Eq. (5): $Hv = \nabla_w \big(v^\top \nabla_w L(w)\big)$, the gradient of a number. Return $Hv$ for
        any function `loss` of a vector `w` (d,), with two calls of `torch.autograd.grad`. (The first needs
        `create_graph=True`, so that the second can go through it.)
    """,
    stub="""
        def hessian_product(loss, w, v):
            return ...
    """,
    answer="hessian_product",
    solution="""
        def hessian_product(loss, w, v):
            w = w.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(w), w, create_graph=True)
            (product,) = torch.autograd.grad(v @ gradient, w)
            return product
    """,
    trials=trials,
    hints=(
        "Give autograd a vector of your own: `w = w.detach().clone().requires_grad_()`.",
        "`torch.autograd.grad(loss(w), w, create_graph=True)` is the gradient; `v @ gradient` is a number. And its "
        "gradient?",
    ),
    mistakes=(
        Mistake(SIGN, lambda loss, w, v: -product(loss, w, v), "Right, but for the sign: the product is +Hv."),
        Mistake(
            "the gradient",
            lambda loss, w, v: gradient(loss, w)[1],
            "This is the gradient. Multiply it by v, and take the gradient of that number.",
        ),
        Mistake(
            "entry by entry",
            lambda loss, w, v: gradient(loss, w)[1] * v,
            "This multiplies gradient and v entry by entry. `v @ gradient` is a number, and its gradient is Hv.",
        ),
    ),
    commentary="""
        About twice the price of a gradient, whatever the number of parameters. Conjugate gradients ask for nothing
        else, and so does all of HF-KCU: hence "Hessian-free".
    """,
)
