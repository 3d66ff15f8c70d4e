"""How much of a local step are its convolutions, and what is the rest?

    FU_DATA=... python benchmarks/bench_steps.py      # a minute: writes benchmarks/steps.csv

A step of training with convolutions cannot take less time than these: forward, with respect to the weights, and, but in
the first layer, with respect to the inputs. They are timed by themselves, at every layer's shapes, in the memory order
of our training and in the other one, whichever is faster: the machine's rate. Beside them a step of ours
(`fu_core.federation`, one client's epoch by its steps) and of a plain loop (module, autograd, torch.optim.SGD), all in
turn on one core; medians. Pooling, ReLU and normalisation are timed likewise, forward and backward; what is left over
is the linear layers, the loss, the optimiser, batches and Python.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from workloads import WORKLOADS, Workload, load_or_generate

from fu_core.data import Dataset
from fu_core.federation import ClientOpt, Federation
from fu_core.federation.local import batches, train_client
from fu_core.models import build

OUT = Path(__file__).resolve().parent / "steps.csv"
NETS, TURNS, STEPS = ("cnn", "resnet", "lenet"), 15, 8
PASSED = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.ReLU, nn.GroupNorm)


def main() -> None:
    """Measure and write the table."""
    rows = []
    for name in tqdm(NETS, unit="net"):
        data = load_or_generate(WORKLOADS[name])
        rows.append(measured(WORKLOADS[name], data, turns=TURNS))
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    note = f"# milliseconds of a local step, one core, medians of {TURNS} turns; torch {torch.__version__}"
    OUT.write_text(f"{note}\n{table.to_csv(index=False, float_format='%.3g')}", encoding="utf-8")


def measured(workload: Workload, data: Dataset, *, turns: int) -> dict[str, Any]:
    """One net: milliseconds per step of ours, of the plain loop's, and of parts by themselves."""
    model = build(workload.model, data)
    n = STEPS * workload.batch_size
    client = data.x_train[:n], data.y_train[:n]
    local = ClientOpt(lr=workload.lr, batch_size=workload.batch_size)
    f, w = Federation(model, {0: client}, local, how="loop"), model.init(0)
    seen = _layers(model.module, model.arrange(client[0][: workload.batch_size]))
    ways: dict[str, Callable[[], object]] = {
        "fu_core": lambda: train_client(f, w, 0, 1),
        "plain": lambda: _plain_epoch(model.module, client, f),
    }
    parts = [(kind, _of_layer(layer, x)) for kind, layer, x in seen]
    taken: dict[str, list[float]] = {way: [] for way in (*ways, "convolutions", "other layers")}
    for _ in range(turns + 1):
        for way, run in ways.items():
            taken[way].append(_seconds(run) / STEPS)
        for kind in ("convolutions", "other layers"):
            best = (min(_seconds(run) for run in orders) for which, orders in parts if which == kind)
            taken[kind].append(sum(best))
    ms = {way: 1000 * statistics.median(each[1:]) for way, each in taken.items()}  # the first warms up
    return {
        "net": workload.name,
        "batch": workload.batch_size,
        "fu_core, ms": ms["fu_core"],
        "plain, ms": ms["plain"],
        "convolutions alone, ms": ms["convolutions"],
        "pooling, ReLU, norms alone, ms": ms["other layers"],
        "convolutions / fu_core, %": 100 * ms["convolutions"] / ms["fu_core"],
        "convolutions / plain, %": 100 * ms["convolutions"] / ms["plain"],
    }


def _plain_epoch(module: nn.Module, client: tuple[Tensor, Tensor], f: Federation) -> None:
    net = copy.deepcopy(module)
    optimiser = torch.optim.SGD(net.parameters(), lr=f.local.lr)
    x, y = client
    for rows in batches(len(y), f.local, seed=0, round=1, client=0):
        optimiser.zero_grad()
        cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


def _layers(module: nn.Module, x: Tensor) -> list[tuple[str, nn.Module, Tensor]]:
    """Every convolution, and every other layer that passes images on, with the input that it sees."""
    found: list[tuple[str, nn.Module, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kind = "convolutions" if isinstance(layer, nn.Conv2d) else "other layers"
        found.append((kind, layer, inputs[0].detach().clone(memory_format=torch.preserve_format)))

    net = copy.deepcopy(module)
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, *PASSED)):
            layer.register_forward_hook(note)
    with torch.no_grad():
        net(x)
    return [(kind, layer, x) for kind, layer, x in found if x.dim() == 4 or kind == "convolutions"]


def _of_layer(layer: nn.Module, x: Tensor) -> list[Callable[[], object]]:
    """Forward and backward of a layer by itself, in both memory orders; nothing below a net's first has a gradient."""
    first = x.shape[1] in (1, 3)  # colours
    if isinstance(layer, nn.ReLU):
        layer = nn.ReLU()  # one that works in place would overwrite its leaf

    def passes(x: Tensor) -> Callable[[], object]:
        leaf = x if first else x.requires_grad_()
        free = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        above = torch.ones_like(layer(leaf))
        return lambda: torch.autograd.grad(layer(leaf), [*free, *([] if first else [leaf])], above)

    orders = (torch.contiguous_format, torch.channels_last)
    return [passes(x.detach().clone(memory_format=order)) for order in orders]


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
