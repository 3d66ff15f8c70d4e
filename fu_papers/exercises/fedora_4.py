"""The primal step of one party."""

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "fedora-4"


def trials() -> list[Arguments]:
    """theta (d,), theta_0 (d,), g_r (d,), g_u (d,), price, tau, mu."""
    draws = Draws(ID)
    by_hand = (numbers(1, 1), numbers(0, 0), numbers(1, 0), numbers(0, 1), 2.0, 0.1, 0.5)
    return [by_hand, (*(draws.normal(5) for _ in range(4)), 0.7, 0.2, 0.1)]


EXERCISE = Exercise(
    id=ID,
    title="a step that pays the price",
    stars=1,
    minutes=10,
    statement=r"""
        The primal step (21) of one party: down on the retained loss, *up* on the forgetting score as far as its price
        $\lambda$ says, and back towards where it started:
        $\theta \leftarrow \theta - \tau\,\big(\nabla L_r - \lambda \nabla L_u + \mu(\theta - \theta_0)\big)$. `g_r` and
        `g_u` are the two gradients.
    """,
    stub="""
        def primal_step(theta, theta_0, g_r, g_u, price, tau, mu):
            return ...
    """,
    answer="primal_step",
    solution="""
        def primal_step(theta, theta_0, g_r, g_u, price, tau, mu):
            return theta - tau * (g_r - price * g_u + mu * (theta - theta_0))
    """,
    trials=trials,
    hints=(
        "The Lagrangian is L_r + lambda (epsilon - L_u) + mu/2 |theta - theta_0|^2. What is its gradient?",
        "theta - tau * (g_r - price * g_u + mu * (theta - theta_0)).",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda theta, theta_0, g_r, g_u, price, tau, mu: theta - tau * (g_r + price * g_u + mu * (theta - theta_0)),
            "This goes *down* on the forgetting score: it makes the model surer of what it should forget.",
        ),
        Mistake(
            "uphill",
            lambda theta, theta_0, g_r, g_u, price, tau, mu: theta + tau * (g_r - price * g_u + mu * (theta - theta_0)),
            "The step goes against the gradient of the Lagrangian, not along it.",
        ),
        Mistake(
            "no proximal term",
            lambda theta, theta_0, g_r, g_u, price, tau, mu: theta - tau * (g_r - price * g_u),
            "The proximal term mu (theta - theta_0) is missing.",
        ),
        Mistake(
            "towards zero",
            lambda theta, theta_0, g_r, g_u, price, tau, mu: theta - tau * (g_r - price * g_u + mu * theta),
            "The proximal term pulls back to theta_0, not to zero.",
        ),
    ),
    commentary="""
        Every party can take this step alone, since the active party folds the price into the gradients that it sends:
        nothing more crosses than in training.
    """,
)
