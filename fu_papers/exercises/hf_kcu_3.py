"""Conjugate gradients in eight lines."""

from collections.abc import Callable

import torch
from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "hf_kcu-3"
Product = Callable[[Tensor], Tensor]


def times(H: Tensor) -> Product:
    """The function that multiplies by H."""
    return lambda p: H @ p


def trials() -> list[Arguments]:
    """A product with H, g (d,), k."""
    draws = Draws(ID)
    H, large = torch.stack([numbers(4, 1), numbers(1, 3)]), draws.bowl(6)
    return [(times(H), numbers(1, 2), 1), (times(large), draws.normal(6), 2), (times(large), draws.normal(6), 4)]


def solved(product: Product, g: Tensor, k: int, *, conjugate: bool = True) -> Tensor:
    """k steps of conjugate gradients, or of steepest descent."""
    v, r, p = torch.zeros_like(g), g, g
    for _ in range(k):
        Hp = product(p)
        alpha = r @ r / (p @ Hp)
        v, r_new = v + alpha * p, r - alpha * Hp
        p, r = (r_new + (r_new @ r_new) / (r @ r) * p if conjugate else r_new), r_new
    return v


EXERCISE = Exercise(
    id=ID,
    title="conjugate gradients",
    stars=2,
    minutes=30,
    statement=r"""
        Solve $Hv = g$ knowing only the function `product(p)` $= Hp$, as Algorithm 1 does from line 6 on. Start with
        $v = 0$, residual $r = g$, direction $p = g$, and repeat `k` times: $\alpha = \frac{r^\top r}{p^\top Hp}$,
        $v \leftarrow v + \alpha p$, $r_{\text{new}} = r - \alpha Hp$,
        $p \leftarrow r_{\text{new}} + \frac{r_{\text{new}}^\top r_{\text{new}}}{r^\top r} p$. Return $v$ after `k`
        steps.
    """,
    stub="""
        def conjugate_gradients(product, g, k):
            return ...
    """,
    answer="conjugate_gradients",
    solution="""
        def conjugate_gradients(product, g, k):
            v, r, p = torch.zeros_like(g), g, g
            for _ in range(k):
                Hp = product(p)
                alpha = r @ r / (p @ Hp)
                v, r_new = v + alpha * p, r - alpha * Hp
                p, r = r_new + (r_new @ r_new) / (r @ r) * p, r_new
            return v
    """,
    trials=trials,
    hints=(
        "Only one product per step: keep `Hp = product(p)`, it is used twice.",
        "Update in this order: alpha, v, the new r, then p with the old and the new r, and only then forget the old r.",
    ),
    mistakes=(
        Mistake(SIGN, lambda product, g, k: -solved(product, g, k), "This solves Hv = -g. Start from r = g, v = 0."),
        Mistake(
            "steepest descent",
            lambda product, g, k: solved(product, g, k, conjugate=False),
            "This is steepest descent: right for one step, and slow. The next direction is not the residual alone; it "
            "keeps a part of the last direction, so that what was won is not lost again.",
        ),
        Mistake(
            "one step too many",
            lambda product, g, k: solved(product, g, k + 1),
            "This takes one step too many.",
        ),
        Mistake(
            "one step too few",
            lambda product, g, k: solved(product, g, k - 1),
            "This takes one step too few.",
        ),
    ),
    commentary="""
        Two parameters, two steps: in d dimensions CG arrives after at most d steps, and comes near after a number that
        grows like the root of the condition number. Where H is not positive, as in a net, alpha may divide by a
        negative number; section 4 shows what happens then.
    """,
)
