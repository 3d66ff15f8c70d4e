"""Where Algorithm 1, as printed, ends."""

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "hf_kcu-4"


def trials() -> list[Arguments]:
    """theta (d,), the leaving client's own optimum (d,), w_f."""
    draws = Draws(ID)
    return [(numbers(2), numbers(4), 0.5), (draws.normal(3), draws.normal(3), 0.1)]


EXERCISE = Exercise(
    id=ID,
    title="where does Algorithm 1 end?",
    stars=2,
    minutes=20,
    statement=r"""
        Algorithm 1 as printed solves with the leaving client's *own* Hessian $H_f$, and takes the step $-w_f H_f^{-1}
        \nabla \ell_f(\theta)$. Without damping and clip, for a client whose loss is a bowl with its minimum in
        $\theta_f^\star$: where does it end? Return that point, without any Hessian.
    """,
    stub="""
        def end_of_algorithm_1(theta, theta_f, w_f):
            return ...
    """,
    answer="end_of_algorithm_1",
    solution="""
        def end_of_algorithm_1(theta, theta_f, w_f):
            return (1 - w_f) * theta + w_f * theta_f
    """,
    trials=trials,
    hints=(
        "The gradient of a bowl is H_f (theta - theta_f). What is H_f^-1 times it?",
        "The step is -w_f (theta - theta_f): a share w_f of the way from theta to theta_f.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda theta, theta_f, w_f: (1 + w_f) * theta - w_f * theta_f,
            "That is where it *should* go, away from the leaving client's optimum. The printed sign is a minus.",
        ),
        Mistake(
            "all the way",
            lambda theta, theta_f, w_f: 1.0 * theta_f,
            "That is where Eq. (8) ends, with the client's own Hessian and alpha = 1. Algorithm 1 multiplies by the "
            "client's weight w_f as well (line 24).",
        ),
        Mistake(
            "swapped",
            lambda theta, theta_f, w_f: w_f * theta + (1 - w_f) * theta_f,
            "Swapped: it goes the share w_f of the way, and w_f is small.",
        ),
    ),
    commentary="""
        Towards the optimum of the client that asked to be forgotten (erratum H1). It is a test, too:
        tests/fu_core/unlearning/test_hf_kcu.py. In section 13, set the sign to -1 and see the path.
    """,
)
