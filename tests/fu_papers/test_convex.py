"""Problems with known optima: Newton's method finds them, and on ridge regression a closed form says so."""

import torch

from fu_papers.convex import L2, convex_clients, convex_model, data_hash, optimum, pooled


def test_the_optimum_is_one_and_on_ridge_the_closed_form():
    model, clients = convex_model("diabetes"), convex_clients("diabetes", 10, seed=0)
    w = optimum(model, pooled(clients))
    ((_, (x, y)),) = pooled(clients)
    closed = torch.linalg.solve(x.T @ x / len(y) + L2 * torch.eye(10, dtype=x.dtype), x.T @ y / len(y))
    torch.testing.assert_close(w, closed, rtol=1e-10, atol=1e-12)
    logistic, holders = convex_model("breast_cancer"), convex_clients("breast_cancer", 10, seed=0)
    ((_, data),) = pooled(holders)
    assert logistic.grad(optimum(logistic, pooled(holders)), *data).norm() < 1e-11


def test_data_hashes_differ_between_tables():
    hashes = {data_hash(name) for name in ("diabetes", "breast_cancer", "")}
    assert len(hashes) == 3
