"""Products with curvature per second, and what solving several requests together saves.

    FU_DATA=... FU_CURVLINOPS=... python benchmarks/bench_curvature.py      # some minutes: writes two tables

curvature.csv: a product of Hessian or Gauss-Newton matrix with a vector, on as many images as its table says; one core,
each way in turn with the others, the median of several turns, in batches of 128 for everybody:

    plain            autograd twice, a batch after another (torch.autograd.grad of grad'v)
    curvlinops       its HessianLinearOperator and GGNLinearOperator, a vector at a time, and eight
    fu_core          curvature_product, a vector at a time, and eight

FU_CURVLINOPS is a folder with `curvlinops` and what it needs beyond torch and SciPy (`pip install --no-deps --target`);
without it those columns stay empty. All products are compared with the plain ones.

requests.csv: ten clients ask, each by itself, with the curvature of everybody's loss: HF-KCU's steps one after another
(`hf_kcu_step`), and all of them in one block of conjugate gradients (`hf_kcu_steps`), to the same residual.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from fu_core import partition
from fu_core.data import Dataset, load
from fu_core.federation import ClientOpt, Federation, Meter, fedavg
from fu_core.federation.local import Client
from fu_core.models import build
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.curvature import Product, curvature_product
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu_step, hf_kcu_steps

OUT = Path(__file__).resolve().parent
PLACES = (  # data, net, images
    ("fashion_mnist", "softmax_regression", 2000),
    ("fashion_mnist", "mlp", 2000),
    ("fashion_mnist", "lenet", 500),
    ("cifar10", "simple_cnn", 250),
)
ASKED = (("digits", "softmax_regression"), ("digits", "mlp"), ("fashion_mnist", "lenet"))  # data, net
MATRICES = ("hessian", "ggn")
BATCH, SEVERAL, TURNS = 128, 8, 5
DAMPING, TOLERANCES = 0.01, (0.1, 0.001)


def main() -> None:
    """Measure and write both tables."""
    other = os.environ.get("FU_CURVLINOPS")
    if other:
        sys.path.append(other)
    note = f"# one core, torch {torch.__version__}, curvlinops {_version() if other else 'not installed'}"
    products = [
        measured(load(data), net, images, matrix, turns=TURNS)
        for data, net, images in tqdm(PLACES, unit="place")
        for matrix in MATRICES
    ]
    requests = [row for data, net in tqdm(ASKED, unit="place") for row in asked(load(data), net)]
    for name, rows in (("curvature", products), ("requests", requests)):
        table = pd.DataFrame(rows)
        print(table.to_string(index=False))
        (OUT / f"{name}.csv").write_text(f"{note}\n{table.to_csv(index=False, float_format='%.3g')}", encoding="utf-8")


# --- products --------------------------------------------------------------------------------------------------------


def measured(data: Dataset, net: str, images: int, matrix: str, *, turns: int) -> dict[str, Any]:
    """One net and matrix: products per second of each way, and the largest difference from the plain one's."""
    model = build(net, data)
    w = model.init(0)
    samples = data.x_train[:images], data.y_train[:images]
    V = torch.randn(SEVERAL, model.d, generator=torch.Generator().manual_seed(0))
    ours = curvature_product(model, w, [(1.0, samples)], matrix=matrix, batch_size=BATCH)
    ways: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: plain_product(model, w, samples, matrix)(V[0])[None],
        "fu_core": lambda: ours(V[0])[None],
        f"fu_core, {SEVERAL} at once": lambda: ours(V),
    }
    if os.environ.get("FU_CURVLINOPS"):
        theirs = curvlinops_product(model, w, samples, matrix)
        ways["curvlinops"] = lambda: theirs(V[:1].T).T
        ways[f"curvlinops, {SEVERAL} at once"] = lambda: theirs(V.T).T
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, Tensor] = {}
    for _ in range(turns + 1):
        for way, product in ways.items():
            started = time.perf_counter()
            found[way] = product()
            seconds[way].append((time.perf_counter() - started) / len(found[way]))
    rate = {way: 1 / statistics.median(taken[1:]) for way, taken in seconds.items()}  # the first warms up
    truth = found["plain"][0]
    off = max(float((rows[0] - truth).abs().max() / truth.abs().max()) for rows in found.values())
    order = ("plain", "curvlinops", f"curvlinops, {SEVERAL} at once", "fu_core", f"fu_core, {SEVERAL} at once")
    return {
        "data, net": f"{data.name}, {net}",
        "parameters": model.d,
        "images": images,
        "matrix": matrix,
        **{f"{way}, products/s": rate.get(way) for way in order},
        "fu_core / plain": rate["fu_core"] / rate["plain"],
        "several / plain": rate[order[-1]] / rate["plain"],
        "several / curvlinops": rate[order[-1]] / max(rate[way] for way in order[1:3]) if order[1] in rate else None,
        "largest relative difference": off,
    }


def plain_product(model: FlatModel, w: Tensor, samples: Client, matrix: str) -> Product:
    """Autograd twice per batch, and nothing kept between products."""

    def hessian(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        leaf = w.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(
            cross_entropy(model.logits(leaf, x), y, reduction="sum"), leaf, create_graph=True
        )
        return torch.autograd.grad(gradient.dot(v), leaf)[0]

    def gauss_newton(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        leaf = w.clone().requires_grad_()
        z = model.logits(leaf, x)
        free = torch.zeros_like(z, requires_grad=True)  # J v by backward mode alone: J'u is linear in u
        (pulled,) = torch.autograd.grad(z, leaf, free, create_graph=True)
        (moved,) = torch.autograd.grad(pulled, free, v, retain_graph=True)
        p = z.detach().softmax(dim=1)
        return torch.autograd.grad(z, leaf, p * (moved - (p * moved).sum(dim=1, keepdim=True)))[0]

    on_batch = {"hessian": hessian, "ggn": gauss_newton}[matrix]

    def product(v: Tensor) -> Tensor:
        total = torch.zeros_like(w)
        for x, y in zip(*(side.split(BATCH) for side in samples), strict=True):
            total += on_batch(v, x, y)
        return total / len(samples[1]) + model.l2 * v

    return product


def curvlinops_product(model: FlatModel, w: Tensor, samples: Client, matrix: str) -> Product:
    """(d, k) -> (d, k), by the operators of curvlinops on the net that holds `w`."""
    import curvlinops

    module = model.module
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), model.views(w).values(), strict=True):
            parameter.copy_(value)
    operator = {"hessian": curvlinops.HessianLinearOperator, "ggn": curvlinops.GGNLinearOperator}[matrix]
    batches = list(zip(*(side.split(BATCH) for side in samples), strict=True))
    built = operator(module, torch.nn.CrossEntropyLoss(), list(module.parameters()), batches, check_deterministic=False)
    product: Product = built.__matmul__
    return product


def _version() -> str:
    """Of the copy of curvlinops that is imported: its folder is beside the other packages' records."""
    import importlib.metadata

    return importlib.metadata.version("curvlinops-for-pytorch")


# --- requests --------------------------------------------------------------------------------------------------------


def asked(data: Dataset, net: str) -> list[dict[str, Any]]:
    """Ten clients' requests on a trained model: one row per residual that is asked for."""
    data = data.subset(n_train=1000, seed=0)
    parts = partition.dirichlet(data.y_train, 10, alpha=0.5, seed=0, min_size=10)
    clients = {i: (data.x_train[part], data.y_train[part]) for i, part in enumerate(parts)}
    f = Federation(build(net, data), clients, ClientOpt(lr=0.1, epochs=2, batch_size=10))
    w = fedavg(f, f.model.init(0), 10)
    deletions = [Deletion.of(f.clients, i) for i in f.clients]
    rows = []
    for tol in TOLERANCES:
        how = HFKCU(curvature="global", matrix="ggn", gradient="centred", steps=1, damping=DAMPING, tol=tol, iters=300)
        started = time.perf_counter()
        alone = [hf_kcu_step(f.having(meter=Meter()), w, deletion, how) for deletion in deletions]
        between = time.perf_counter()
        together = f.having(meter=Meter())
        steps = hf_kcu_steps(together, w, deletions, how)
        ended = time.perf_counter()
        singly = torch.stack([step.step for step in alone])
        rows.append(
            {
                "data, net": f"{data.name}, {net}",
                "parameters": f.model.d,
                "requests": len(deletions),
                "residual at most": tol,
                "products, one by one": sum(step.cg_steps for step in alone),
                "products, together": together.meter.products // len(data.y_train),
                "seconds, one by one": between - started,
                "seconds, together": ended - between,
                "faster, x": (between - started) / (ended - between),
                "largest relative difference": float(((steps - singly).norm(dim=1) / singly.norm(dim=1)).max()),
            }
        )
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
