"""PUF-Regular with eta_u = -eta_r is an ordinary round."""

from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "puf-2"


def trials() -> list[Arguments]:
    """eta_r."""
    return [(1.0,), (0.7,), (2.0,)]


EXERCISE = Exercise(
    id=ID,
    title="when is PUF an ordinary round?",
    stars=1,
    minutes=10,
    statement=r"""
        For one value of $\eta_u$, PUF-Regular, Eqs. (7) and (8), is nothing but a round of FedAvg with the server's
        rate $\eta_r$: $w + \eta_r \sum_i \frac{n_i}{n} \Delta_i$ over all clients, whoever leaves. Find it on paper,
        and return that $\eta_u$. (`puf` refuses an $\eta_u$ that is not positive; `pseudo_gradient` does not. So you
        can try yours out: `torch.ones(5) @ deltas / 5`, where five clients are equally large, must be what
        `fu_core.unlearning.puf.pseudo_gradient(deltas, torch.ones(5), leaves, mode="regular", eta_r=1.0, eta_u=...)`
        returns, for any `deltas` (5, d) and any `leaves` (5,) of True and False.)
    """,
    stub="""
        def eta_u_of_fedavg(eta_r):
            return ...
    """,
    answer="eta_u_of_fedavg",
    solution="""
        def eta_u_of_fedavg(eta_r):
            return -eta_r
    """,
    trials=trials,
    hints=(
        "Write Eq. (7) as one sum over all clients: a client that stays has the factor eta_r, one that leaves -eta_u.",
        "For FedAvg both factors must be the same: eta_r = -eta_u.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda eta_r: eta_r,
            "With eta_u = eta_r who leaves is subtracted as much as others are added. FedAvg adds everybody: mind the "
            "minus before eta_u in Eq. (7).",
        ),
        Mistake("minus one", lambda eta_r: -1.0, "Right for eta_r = 1 only."),
        Mistake(
            "one",
            lambda eta_r: 1.0,
            "The size is right for eta_r = 1, the sign for none: mind the minus before eta_u in Eq. (7).",
        ),
    ),
    commentary="""
        So PUF is FedAvg with a dial. Turned from -eta_r (take part) over 0 (be ignored) to positive values, the client
        is learned, left out, unlearned; no other machinery is needed, which is why it fits into any FedAvg server.
    """,
)
