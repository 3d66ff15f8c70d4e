"""Where a net and samples do not go together one error names the client, and a net must be a function of a sample."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.errors import InvalidRequest, UnsupportedModel
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp, softmax_regression
from tests.federations import classified

X, Y = classified(24)
LAYERS = {"dense": softmax_regression(5, 3), "loop": nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))}


class Elsewhere(nn.Module):
    """A net whose forward does what its layers do not show."""

    def __init__(self, what):
        super().__init__()
        self.body, self.head, self.what = nn.Linear(5, 4), nn.Linear(4, 3), what

    def forward(self, x):
        return self.head(self.what(torch.relu(self.body(x))))


def trained(module, clients, dtype=torch.float32):
    model = FlatModel(module)
    return fedavg(Federation(model, clients, ClientOpt(lr=0.1, batch_size=4)), model.init(0, dtype), 1)


@pytest.mark.parametrize("way", LAYERS)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, y: (x[:, :4], y), r"x is torch.float32 of shape \(24, 4\)"),
        (lambda x, y: (x, y[:, None]), r"y torch.int64 of shape \(24, 1\)"),
    ],
)
def test_a_client_whose_samples_the_model_does_not_take_is_named(way, change, told):
    with pytest.raises(InvalidRequest, match=f"client 4 must hold samples that the model takes.*{told}"):
        trained(LAYERS[way], {1: (X, Y), 4: change(X, Y)})


@pytest.mark.parametrize("way", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_samples_of_another_type_than_the_model_are_one_error(way, dtype):
    with pytest.raises(InvalidRequest, match=f"client 0 must hold samples that the model takes.*x is {dtype}"):
        trained(LAYERS[way], [((10 * X).to(dtype), Y)])


def test_floats_of_two_precisions_are_refused():
    """Pooled they were all of the finer one, and the wrong client was named."""
    with pytest.raises(InvalidRequest, match=r"client 1 must hold samples of torch.float32.* got torch.float64"):
        trained(LAYERS["dense"], [(X, Y), (X.double(), Y)])


def test_a_model_of_another_precision_than_its_data_is_one_error():
    with pytest.raises(InvalidRequest, match=r"client 0 must hold samples.*w torch.float64"):
        trained(LAYERS["loop"], [(X, Y)], torch.float64)
    model = FlatModel(LAYERS["loop"])
    with pytest.raises(ValueError, match="w must be a tensor, got ndarray"):
        fedavg(Federation(model, [(X, Y)]), model.init(0).numpy(), 1)


def test_what_is_no_row_of_samples_is_named():
    with pytest.raises(InvalidRequest, match="client 0 must hold samples in a row, got shapes"):
        Federation(FlatModel(mlp(5, 3, (4,))), [(torch.tensor(1.0), torch.tensor(0))])


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (lambda h: F.dropout(h, 0.5, training=True), "draws numbers"),
        (lambda h: F.batch_norm(h, None, None, training=True), "whole batch"),
        (lambda h: h - h.mean(dim=0), "whole batch"),
    ],
)
def test_a_forward_that_is_no_function_of_a_sample_is_refused_before_it_trains(what, told):
    with pytest.raises(UnsupportedModel, match=told):
        trained(Elsewhere(what), [(X, Y), (X, Y)])


def test_a_net_that_is_one_is_asked_once():
    calls = []
    model = FlatModel(Elsewhere(lambda h: (calls.append(len(h)), h)[1]))
    f = Federation(model, [(X, Y)], ClientOpt(lr=0.1, batch_size=24), how="loop")
    w = fedavg(f, model.init(0), 1)
    first = len(calls)
    fedavg(f, w, 1)
    assert calls[:3] == [16, 16, 1]
    assert len(calls) - first < first
