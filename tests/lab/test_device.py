"""Where runs compute, and how exactly."""

import torch

from fu_papers.lab.device import device


def test_float32_on_a_gpu_is_float32(monkeypatch):
    """torch lets cuDNN round the factors of convolutions to TF32, and no record would tell."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setenv("FU_DEVICE", "cpu")
    assert device().type == "cpu"
    assert torch.backends.cudnn.allow_tf32
    monkeypatch.setenv("FU_DEVICE", "cuda:1")
    assert device() == torch.device("cuda:1")
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
