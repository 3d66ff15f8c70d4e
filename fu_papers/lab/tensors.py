"""Tensors in .safetensors files: what a run keeps, and its checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fu_papers.lab.files import written_atomically

Tensors = dict[str, torch.Tensor]


def save_tensors(path: Path, tensors: Tensors, state: str | None = None, *, tidy: bool = True) -> None:
    """Write `tensors`, and with a `state` beside them a checksum of both: nobody else knows what a checkpoint holds.

    tidy: as in `written_atomically`.
    """
    # safetensors refuses tensors that share memory, and views of one flat vector are our daily bread: hence clone.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    metadata = None if state is None else {"state": state, "sha256": tensors_sha256(copies, state)}
    with written_atomically(path, tidy=tidy) as part:
        save_file(copies, part, metadata)


def load_tensors(path: Path, names: Collection[str] | None = None) -> tuple[Tensors, dict[str, str]]:
    """The tensors of a file, or only those in `names`, on the CPU; and the text beside them."""
    with safe_open(path, framework="pt") as file:
        wanted = [name for name in file.keys() if names is None or name in names]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in wanted}, file.metadata() or {}


def tensors_sha256(tensors: Tensors, state: str) -> str:
    """Of contiguous tensors on the CPU, with their names, types and shapes, and of the text beside them."""
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
