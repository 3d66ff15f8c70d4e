"""Several right sides of one matrix at once: block conjugate gradients against dense algebra and CG by itself."""

import pytest
import torch

from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.federation.federation import Federation
from fu_core.federation.meter import Meter
from fu_core.request import Deletion
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu_step, hf_kcu_steps
from fu_core.unlearning.krylov import cg_iterates, solve, solve_together
from tests.fu_core.unlearning.test_krylov import symmetric, times

EXACT = {"rtol": 1e-9, "atol": 1e-12}
STEP = {"curvature": "global", "steps": 1, "gradient": "retained", "damping": 0.1, "tol": 1e-12, "iters": 50}


def rows_times(H):
    return lambda V: V @ H


def sides(k, d, seed=0, dtype=torch.float64):
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("damping", [0.0, 0.5])
@pytest.mark.parametrize(("k", "d"), [(1, 6), (2, 6), (3, 7), (5, 5), (7, 4)])
def test_block_cg_equals_a_dense_solve_once_the_blocks_fill_the_space(k, d, damping):
    H, _ = symmetric(d, 0.5, 5.0)
    G = sides(k, d)
    found = solve_together(rows_times(H), G, iters=-(-d // min(k, d)), damping=damping, tol=0.0)
    exact = torch.linalg.solve(H + damping * torch.eye(d, dtype=torch.float64), G.T).T
    torch.testing.assert_close(torch.stack([solution.v for solution in found]), exact, rtol=1e-7, atol=1e-9)


def test_one_right_side_is_cg_step_by_step():
    H, g = symmetric(12, 0.1, 10.0)
    alone = solve(times(H), g, iters=7, damping=0.2, tol=0.0)
    (block,) = solve_together(rows_times(H), g[None], iters=7, damping=0.2, tol=0.0)
    torch.testing.assert_close(block.v, alone.v, **EXACT)
    assert block.residual_norms == pytest.approx(alone.residual_norms)
    assert block.curvatures == pytest.approx(alone.curvatures)


def test_residuals_are_the_true_residuals():
    H, _ = symmetric(30, 0.01, 10.0)
    G = sides(4, 30)
    for iters in range(1, 6):
        for g, found in zip(G, solve_together(rows_times(H), G, iters=iters, damping=0.1, tol=0.0), strict=True):
            true = float((g - H @ found.v - 0.1 * found.v).norm())
            assert len(found.residual_norms) == iters + 1
            assert found.residual_norms[-1] == pytest.approx(true, rel=1e-8)


def test_no_step_is_worse_than_cgs_and_together_they_need_fewer():
    """The best of all blocks' directions includes the best of one's own, in the norm of the matrix."""
    H, _ = symmetric(60, 1e-3, 1.0)
    G = sides(6, 60)
    exact = torch.linalg.solve(H, G.T).T

    def error(v, truth):
        return float((v - truth) @ H @ (v - truth))

    for iters in (1, 3, 6, 9):
        together = solve_together(rows_times(H), G, iters=iters, damping=0.0, tol=0.0)
        for g, truth, found in zip(G, exact, together, strict=True):
            *_, alone = (it for it, _ in zip(cg_iterates(times(H), g), range(iters), strict=False))
            assert error(found.v, truth) <= error(alone.v, truth) * (1 + 1e-9)
    steps = len(solve_together(rows_times(H), G, iters=60, damping=0.0, tol=1e-3)[0].curvatures)
    assert steps < min(len(solve(times(H), g, iters=200, damping=0.0, tol=1e-3).curvatures) for g in G) / 2


def test_right_sides_may_repeat_or_vanish():
    H, _ = symmetric(9, 0.5, 5.0)
    g, h = sides(2, 9)
    G = torch.stack([g, 2 * g, torch.zeros(9, dtype=torch.float64), h, g + h])
    found = solve_together(rows_times(H), G, iters=9, damping=0.0, tol=1e-12)
    torch.testing.assert_close(torch.stack([s.v for s in found]), torch.linalg.solve(H, G.T).T, rtol=1e-8, atol=1e-10)
    assert not found[2].v.any()
    products = []
    nothing = solve_together(lambda V: products.append(V) or V, 0 * G, iters=9, damping=0.0, tol=0.0)
    assert not products
    assert all(s.residual_norms == [0.0] for s in nothing)


def test_single_precision_ends_at_rounding():
    H, _ = symmetric(20, 0.01, 10.0, dtype=torch.float32)
    found = solve_together(rows_times(H), sides(3, 20, dtype=torch.float32), iters=300, damping=0.0, tol=0.0)
    for g, solution in zip(sides(3, 20, dtype=torch.float32), found, strict=True):
        assert float((H @ solution.v - g).norm()) < 1e-4 * float(g.norm())
        assert not solution.negative_steps


def test_negative_curvature_is_an_error_on_the_first_step_and_an_end_later():
    with pytest.raises(
        NumericalFailure, match=r"step 1: curvature -0.5 among the gradients .* raise damping \(now 0.5"
    ):
        solve_together(lambda V: -V, sides(2, 5), iters=3, damping=0.5, tol=0.0)
    H = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, -6.0], dtype=torch.float64))
    G = torch.ones(1, 6, dtype=torch.float64)
    alone = solve(times(H), G[0], iters=6, damping=0.0, tol=0.0)
    (block,) = solve_together(rows_times(H), G, iters=6, damping=0.0, tol=0.0)
    assert alone.negative_steps == block.negative_steps == 1
    torch.testing.assert_close(block.v, alone.v, **EXACT)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_is_an_error(broken):
    G = sides(2, 4)
    with pytest.raises(NumericalFailure, match="step 1: the curvature product is not finite"):
        solve_together(lambda V: V * broken, G, iters=3, damping=0.0, tol=0.0)
    G[1, 2] = broken
    with pytest.raises(NumericalFailure, match="a right side is not finite"):
        solve_together(lambda V: V, G, iters=3, damping=0.0, tol=0.0)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="iters must be a whole number >= 1, got 0"):
        solve_together(lambda V: V, sides(2, 4), iters=0, damping=0.0, tol=0.0)
    with pytest.raises(ValueError, match=r"G must be right sides as rows \(k, d\), got \(4,\)"):
        solve_together(lambda V: V, sides(2, 4)[0], iters=3, damping=0.0, tol=0.0)


# --- requests that share their curvature -----------------------------------------------------------------------------


def asked(quadratics):
    """A federation of quadratics, and four requests: three clients, each by itself, and two together."""
    f = Federation(quadratics.model, quadratics.clients, meter=Meter())
    return f, [Deletion.of(f.clients, forget) for forget in (0, 1, 2, [0, 3])]


def test_every_request_has_the_step_that_it_has_by_itself(quadratics):
    f, deletions = asked(quadratics)
    w, config = torch.ones(3, dtype=torch.float64), HFKCU(**STEP)
    steps = hf_kcu_steps(f, w, deletions, config)
    for step, deletion in zip(steps, deletions, strict=True):
        torch.testing.assert_close(step, hf_kcu_step(f, w, deletion, config).step, rtol=1e-8, atol=1e-10)


def test_the_steps_are_those_of_the_dense_matrix(quadratics):
    """(H + damping I)^-1 (-grad L_r), with H the curvature of all samples alike."""
    f, deletions = asked(quadratics)
    w = torch.full((3,), 0.5, dtype=torch.float64)
    n = sum(len(X) for X, _ in quadratics.clients)
    H = sum(X.T @ X for X, _ in quadratics.clients) / n
    for step, deletion in zip(hf_kcu_steps(f, w, deletions, HFKCU(**STEP)), deletions, strict=True):
        kept = {i: X for i, (X, _) in enumerate(quadratics.clients) if i in deletion.kept}
        m = sum(len(X) for X in kept.values())
        downhill = sum(X.T @ X @ (quadratics.a[i] - w) for i, X in kept.items()) / m
        exact = torch.linalg.solve(H + 0.1 * torch.eye(3, dtype=torch.float64), downhill)
        torch.testing.assert_close(step, exact, rtol=1e-8, atol=1e-10)


def test_together_they_cost_less(quadratics):
    """Three unknowns: a request by itself needs three products with 50 samples, and all four together no more."""
    (together, deletions), (alone, _) = asked(quadratics), asked(quadratics)
    w, config = torch.ones(3, dtype=torch.float64), HFKCU(**STEP)
    hf_kcu_steps(together, w, deletions, config)
    for deletion in deletions:
        hf_kcu_step(alone, w, deletion, config)
    assert (together.meter.products, alone.meter.products) == (3 * 50, 4 * 3 * 50)
    assert together.meter.bytes_down < alone.meter.bytes_down


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curvature": "retained"}, "curvature must be 'global' where requests share their curvature, got 'retained'"),
        ({"steps": 2}, "steps must be 1 where"),
        ({"preconditioner": "jacobi"}, "preconditioner must be 'none' where"),
        ({"scaling": True}, "scaling must be False where"),
        ({"form": "printed", "steps": None, "gradient": None}, "form must be 'corrected' where"),
    ],
)
def test_a_config_that_cannot_share_is_refused_by_name(quadratics, change, message):
    f, deletions = asked(quadratics)
    with pytest.raises(ValueError, match=message):
        hf_kcu_steps(f, torch.ones(3, dtype=torch.float64), deletions, HFKCU(**{**STEP, **change}))


def test_no_request_is_refused(quadratics):
    f, _ = asked(quadratics)
    with pytest.raises(InvalidRequest, match="deletions must name at least one request, got none"):
        hf_kcu_steps(f, torch.ones(3, dtype=torch.float64), [], HFKCU(**STEP))
