"""Curvature products against the matrices themselves, built entry by entry on models of at most 60 parameters."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest
from fu_core.models import flat
from fu_core.models.cnn import simple_cnn
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.linear import UnitLength, softmax_regression
from fu_core.models.resnet import SmallResNet
from fu_core.unlearning import curvature, products
from fu_core.unlearning.curvature import (
    MATRICES,
    curvature_product,
    dense_curvature,
    fisher_diagonal,
    weighted_gradient,
)

EXACT = {"rtol": 1e-9, "atol": 1e-12}
SIZES, WEIGHTS = (7, 3, 5), (0.2, 0.5, 0.1)  # weights neither proportional to the sizes nor summing to one


def drawn(task, sizes=SIZES, features=4, classes=3):
    """Clients with random data for a task, float64."""
    g = torch.Generator().manual_seed(1)
    shape = (1, 3, 4) if task == "segmentation" else (features,)
    clients = []
    for n in sizes:
        x = torch.randn(n, *shape, generator=g, dtype=torch.float64)
        if task == "classification":
            y = torch.randint(0, classes, (n,), generator=g)
        elif task == "segmentation":
            y = torch.randint(0, 2, (n, 3, 4), generator=g)
        else:
            y = torch.randn(n, generator=g, dtype=torch.float64)
        clients.append((x, y))
    return clients


def problem(task, l2=0.0):
    """A small curved model of the task, its parameters, and weighted parts."""
    modules = {
        "classification": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        "regression": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)),
        "segmentation": nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 2, 1)),
    }
    model = FlatModel(modules[task], task=task, l2=l2)
    return model, model.init(0, torch.float64), list(zip(WEIGHTS, drawn(task), strict=True))


def dense(model, w, parts, matrix):
    """sum_k weight_k A_k, (d, d): the definition, with whole Jacobians and one sample at a time."""
    total = torch.zeros(model.d, model.d, dtype=w.dtype)
    for weight, (x, y) in parts:
        for x_1, y_1 in zip(x.split(1), y.split(1), strict=True):
            total += weight / len(y) * of_one_sample(model, w, x_1, y_1, matrix)
    return total + sum(weight for weight, _ in parts) * model.l2 * torch.eye(model.d, dtype=w.dtype)


class Constant(nn.Module):
    """Outputs that no parameter moves."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x):
        return 0 * self.layer.weight.sum() + x.flatten(1)[:, :3]


def of_one_sample(model, w, x, y, matrix):
    def loss(p):
        return model.sample_losses(model.logits(p, x), y)[0]

    if matrix == "hessian":
        return torch.func.hessian(loss)(w)
    if matrix == "fisher":
        g = torch.func.grad(loss)(w)
        return torch.outer(g, g)
    z = model.logits(w, x)
    J = torch.func.jacrev(lambda p: model.logits(p, x))(w).view(-1, model.d)  # (classes, d)
    if model.task == "classification":
        p = z[0].softmax(dim=0)
        return J.T @ (torch.diag(p) - torch.outer(p, p)) @ J
    return J.T @ J  # half the squared error has second derivative 1


def as_matrix(product, d):
    return torch.stack([product(e) for e in torch.eye(d, dtype=torch.float64)], dim=1)


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize(
    ("task", "matrix"),
    [(task, matrix) for task in ("classification", "regression") for matrix in MATRICES]
    + [("segmentation", "hessian"), ("segmentation", "fisher")],
)
def test_products_equal_the_dense_matrix(task, matrix, l2):
    """All columns, three parts of unequal weight: H (HF-KCU, Eq. 5), mean J'SJ and mean gg', each plus 0.8 l2 I."""
    model, w, parts = problem(task, l2)
    ours = as_matrix(curvature_product(model, w, parts, matrix=matrix), model.d)
    torch.testing.assert_close(ours, dense(model, w, parts, matrix), **EXACT)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_batch_size_does_not_change_the_product(matrix, batch_size):
    model, w, parts = problem("classification", l2=0.1)
    v = torch.linspace(-1, 1, model.d, dtype=torch.float64)
    expected = dense(model, w, parts, matrix) @ v
    torch.testing.assert_close(
        curvature_product(model, w, parts, matrix=matrix, batch_size=batch_size)(v), expected, **EXACT
    )


@pytest.mark.parametrize("matrix", MATRICES)
def test_weights_by_size_make_the_mean_over_all_samples(matrix):
    """sum_k n_k / n A_k = A of the pooled data, in batches that may span clients (here 15 = 8 + 7)."""
    model, w, parts = problem("classification", l2=0.1)
    by_size = [(len(client[1]) / 15, client) for _, client in parts]
    pooled = [(1.0, tuple(torch.cat([client[side] for _, client in parts]) for side in (0, 1)))]
    v, counted = torch.linspace(-1, 1, model.d, dtype=torch.float64), []
    ours = curvature_product(model, w, by_size, matrix=matrix, batch_size=8, count=counted.append)(v)
    torch.testing.assert_close(ours, dense(model, w, pooled, matrix) @ v, **EXACT)
    assert counted == [8, 7]


def test_small_weights_are_weights_all_the_same():
    """The product is linear in the weights: a billionth of them gives a billionth of it, unequal as they are."""
    model, w, parts = problem("classification")
    v = torch.linspace(-1, 1, model.d, dtype=torch.float64)
    whole = curvature_product(model, w, parts)(v)
    tiny = curvature_product(model, w, [(1e-9 * weight, client) for weight, client in parts])(v)
    torch.testing.assert_close(1e9 * tiny, whole, **EXACT)


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [[3], [5, 3], [6, 5, 3]])
@pytest.mark.parametrize("kept", [True, False])  # the second: too many features to keep, so by autograd
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_layers_with_relu_between_have_the_same_products_written_out(matrix, bias, widths, kept, task, monkeypatch):
    if not kept:
        monkeypatch.setattr(flat, "MOST_FEATURES", 15 * 4 - 1)
    features = [Standardize(torch.randn(4), torch.rand(4) + 0.5), UnitLength()]
    widths = widths if task == "classification" else [*widths[:-1], 1]
    layers = [nn.Linear(a, b, bias=bias) for a, b in pairwise([4, *widths])]
    tail = [part for layer in layers for part in (nn.ReLU(), layer)][1:]
    model = FlatModel(nn.Sequential(*features, *tail), task, l2=0.3)
    w, parts = model.init(0, torch.float64), list(zip(WEIGHTS, drawn(task), strict=True))
    v = torch.linspace(-1, 2, model.d, dtype=torch.float64)
    seen, by_autograd, plain = [], [], products.DUALS[matrix]
    monkeypatch.setitem(products.DUALS, matrix, lambda *args: by_autograd.append(1) or plain(*args))
    product = curvature_product(model, w, parts, matrix=matrix, batch_size=4, count=seen.append)
    for _ in range(2):
        torch.testing.assert_close(product(v), dense(model, w, parts, matrix) @ v, **EXACT)
    assert seen == [4, 4, 4, 3] * 2
    torch.testing.assert_close(dense_curvature(model, w, parts, matrix=matrix), dense(model, w, parts, matrix), **EXACT)
    assert bool(by_autograd) is not kept


@pytest.mark.parametrize("batch_size", [4, 100])  # batches span clients, or hold them all
@pytest.mark.parametrize("task", ["classification", "regression", "segmentation"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_weighted_gradient_is_the_sum_over_clients_however_their_samples_are_batched(dtype, task, batch_size):
    model, w, parts = problem(task, l2=0.3)
    w, parts = w.to(dtype), [(weight, tuple(t.to(dtype) if t.is_floating_point() else t for t in client))
                             for weight, client in parts]  # fmt: skip
    seen = []
    found = weighted_gradient(model, w, parts, batch_size=batch_size, count=seen.append)
    expected = sum(weight * model.grad(w, *client) for weight, client in parts)
    torch.testing.assert_close(found, expected, **(EXACT if dtype == torch.float64 else {}))
    assert found.dtype == dtype
    assert sum(seen) == sum(len(y) for _, (_, y) in parts)


@pytest.mark.parametrize(("outputs", "targets"), [(1, (7,)), (1, (7, 1)), (2, (7, 2))], ids=["row", "column", "two"])
def test_a_weighted_gradient_takes_targets_of_any_shape(outputs, targets):
    model, g = FlatModel(nn.Linear(4, outputs), "regression", l2=0.3), torch.Generator().manual_seed(0)
    w, parts = model.init(0, torch.float64), []
    for weight in WEIGHTS:
        client = tuple(torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((7, 4), targets))
        parts.append((weight, client))
    expected = sum(weight * model.grad(w, *client) for weight, client in parts)
    torch.testing.assert_close(weighted_gradient(model, w, parts), expected, **EXACT)


@pytest.mark.parametrize("samples", [3, 2])  # as many as there are outputs, which Fisher's shares would fit
@pytest.mark.parametrize("matrix", MATRICES)
def test_curvature_of_a_regression_with_several_outputs_is_never_that_of_their_sum(matrix, samples):
    """Its loss is a mean over outputs, which no formula here has: there is none rather than a wrong one."""
    model = FlatModel(nn.Linear(4, 2), "regression")
    w, x, y = model.init(0, torch.float64), torch.ones(samples, 4).double(), torch.ones(samples, 2).double()
    product = curvature_product(model, w, [(1.0, (x, y))], matrix=matrix)
    for vectors in (w, torch.stack([w, w])):
        with pytest.raises(RuntimeError):
            product(vectors)


NETS = {
    "one layer": nn.Linear,
    "relu": lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs)),
    "tanh": lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs)),
}


def found_of(model, w, parts):
    """All that is computed of data here: the products of one vector and of two, gradients, a diagonal."""
    v = torch.linspace(-1, 1, model.d, dtype=w.dtype)
    for matrix in MATRICES:
        product = curvature_product(model, w, parts, matrix=matrix)
        yield from (product(v), product(torch.stack([v, v**2])))
    yield from (weighted_gradient(model, w, parts), fisher_diagonal(model, w, parts))
    yield model.predict_losses(w, *parts[0][1])


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_class_labels_may_be_of_any_type(net, dtype):
    model, clients = FlatModel(NETS[net](4, 3), l2=0.3), drawn("classification")
    short = [(x, y.to(dtype)) for x, y in clients]
    w = model.init(0, torch.float64)
    both = (found_of(model, w, list(zip(WEIGHTS, these, strict=True))) for these in (short, clients))
    for ours, plain in zip(*both, strict=True):
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("net", NETS)
def test_targets_of_a_regression_may_be_a_column_or_of_another_type(net):
    """The same losses, to rounding, and what is found has the model's own type."""
    model = FlatModel(NETS[net](4, 1), "regression", l2=0.3)
    w = model.init(0)
    clients = [(x.float(), y.float()) for x, y in drawn("regression")]
    plain = list(found_of(model, w, list(zip(WEIGHTS, clients, strict=True))))
    wide = [(x, y.double()) for x, y in clients]
    column = [(x, y[:, None]) for x, y in clients]
    for these in (wide, column, [(x, y[:, None].double()) for x, y in clients]):
        for ours, expected in zip(found_of(model, w, list(zip(WEIGHTS, these, strict=True))), plain, strict=True):
            torch.testing.assert_close(ours.float().view(expected.shape), expected, rtol=1e-5, atol=1e-6)
            assert ours.dtype == torch.float32 or len(ours) == SIZES[0]  # of losses, which are in the targets' type


@pytest.mark.parametrize("net", NETS)
def test_parameters_that_require_a_gradient_are_numbers_here(net):
    """A module's own, say: nothing found is part of their graph."""
    model, parts = FlatModel(NETS[net](4, 3), l2=0.3), list(zip(WEIGHTS, drawn("classification"), strict=True))
    w = model.init(0, torch.float64)
    for ours, plain in zip(found_of(model, w.clone().requires_grad_(), parts), found_of(model, w, parts), strict=True):
        assert torch.equal(ours, plain)
        assert not ours.requires_grad


def test_gauss_newton_is_the_hessian_where_outputs_are_linear():
    """d2 l = J'SJ + sum_c dl/dz_c d2 z_c, and the last term vanishes for linear z."""
    for module, task in [(softmax_regression(4, 3), "classification"), (nn.Linear(4, 1), "regression")]:
        model = FlatModel(module, task=task, l2=0.2)
        w = model.init(0, torch.float64)
        parts = list(zip(WEIGHTS, drawn(task), strict=True))
        ggn, hessian = (as_matrix(curvature_product(model, w, parts, matrix=m), model.d) for m in ("ggn", "hessian"))
        torch.testing.assert_close(ggn, hessian, **EXACT)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_gauss_newton_and_fisher_are_positive_semi_definite_and_the_hessian_is_not(task):
    model, w, parts = problem(task)
    lowest = {
        m: float(torch.linalg.eigvalsh(as_matrix(curvature_product(model, w, parts, matrix=m), model.d))[0])
        for m in MATRICES
    }
    assert lowest["ggn"] > -1e-12
    assert lowest["fisher"] > -1e-12
    assert lowest["hessian"] < -1e-3


@pytest.mark.parametrize("task", ["classification", "regression", "segmentation"])
def test_fisher_diagonal_is_the_diagonal_of_the_outer_products(task):
    model, w, parts = problem(task, l2=0.3)
    counted = []
    ours = fisher_diagonal(model, w, parts, batch_size=2, count=counted.append)
    torch.testing.assert_close(ours, dense(model, w, parts, "fisher").diagonal(), **EXACT)
    assert sum(counted) == sum(SIZES)
    torch.testing.assert_close(fisher_diagonal(model, w, parts), ours, **EXACT)  # in batches of its own choice


@pytest.mark.parametrize(("d", "batches"), [(6, [500, 100]), (4_000, [262, 262, 76]), (100_000, [32] * 18 + [24])])
def test_the_fisher_diagonal_takes_as_many_samples_at_once_as_fit_a_million_numbers(d, batches):
    model = FlatModel(nn.Linear(d - 1, 1), task="regression")
    g = torch.Generator().manual_seed(3)
    data = torch.randn(600, d - 1, generator=g), torch.randn(600, 1, generator=g)
    counted = []
    fisher_diagonal(model, model.init(0), [(1.0, data)], count=counted.append)
    assert counted == batches


@pytest.mark.parametrize(
    ("module", "channels"), [(simple_cnn(3, 8, 3, (2, 3, 3), 4), 3), (SmallResNet(3, 3, (2, 4)), 3)]
)
def test_hessian_product_equals_central_differences_of_the_gradient(module, channels):
    """H v = (grad L(w + e v) - grad L(w - e v)) / 2e + O(e^2), through max-pooling and through GroupNorm."""
    model = FlatModel(module)
    g = torch.Generator().manual_seed(2)
    w = model.init(0, torch.float64)
    x, y = torch.rand(5, channels, 8, 8, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    v = torch.randn(model.d, generator=g, dtype=torch.float64)
    e = 1e-6
    differences = (model.grad(w + e * v, x, y) - model.grad(w - e * v, x, y)) / (2 * e)
    ours = curvature_product(model, w, [(1.0, (x, y))], batch_size=2)(v)
    torch.testing.assert_close(ours, differences, rtol=1e-5, atol=1e-7)
    assert ours.norm() > 0.01


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_products_pass_through_group_norm_in_any_memory_layout(matrix, layout):
    """Forward mode refuses channels-last activations in GroupNorm, and images may well come that way."""
    model = FlatModel(SmallResNet(3, 3, (2, 4)))
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(3, 3, 8, 8, generator=g), torch.tensor([0, 1, 2])
    w, v = model.init(0), torch.ones(model.d)
    ours = curvature_product(model, w, [(1.0, (x.contiguous(memory_format=layout), y))], matrix=matrix)(v)
    double = curvature_product(model, w.double(), [(1.0, (x.double(), y))], matrix=matrix)(v.double())
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, double.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("net", ["tanh", "convolutions", "group norm", "dead", "constant"])
def test_both_ways_of_a_product_agree(net, matrix):
    """By duals and by transforms; a gradient has no forward mode in a group norm, and a dead net's are zero."""
    dead = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 3))
    nets = {
        "tanh": nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Tanh(), nn.Linear(4, 3)),
        "convolutions": simple_cnn(3, 8, 3),
        "group norm": SmallResNet(3, 3, (2, 4)),
        "dead": dead,
        "constant": Constant(),
    }
    model, g = FlatModel(nets[net]), torch.Generator().manual_seed(0)
    x, y = torch.rand(5, 3, 8, 8, generator=g, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    w, share = model.init(0, torch.float64), torch.rand(5, generator=g, dtype=torch.float64)
    if net == "dead":
        model.views(w)["1.bias"].fill_(-1e3)
    v = torch.randn(model.d, generator=g, dtype=torch.float64)
    expected = products.TRANSFORMS[matrix](model, w, v, x, y, share)
    product = products.on_batches(matrix, model, w)
    for _ in range(2):  # the way found out with the first batch is that of the second
        with torch.no_grad():
            ours = product(v, x, y, share)
        torch.testing.assert_close(ours, expected, **EXACT)
    assert bool(expected.any()) is (net != "constant")
    assert not ours.requires_grad


def test_what_no_way_can_differentiate_is_an_error_of_its_own(monkeypatch):
    """Only what has no forward mode goes the other way: any other error is not tried twice."""
    model, w, parts = problem("classification")
    monkeypatch.setitem(products.TRANSFORMS, "ggn", lambda *_: pytest.fail("was tried again"))
    with pytest.raises(RuntimeError):
        curvature_product(model, w, [(1.0, (parts[0][1][0][:, :3], parts[0][1][1]))], matrix="ggn")(w)


@pytest.mark.parametrize("matrix", MATRICES)
def test_every_product_counts_every_sample_once(matrix):
    model, w, parts = problem("regression")
    counted = []
    product = curvature_product(model, w, parts, matrix=matrix, batch_size=4, count=counted.append)
    assert counted == []
    for _ in range(3):
        product(w)
    assert counted == 3 * [4, 4, 4, 3]  # 7, 3 and 5 samples in batches of 4, which span clients


@pytest.mark.parametrize("numbers", [100_000, 9, 1])  # the last two: batches of two samples and of one
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_several_vectors_have_each_its_own_product(task, matrix, numbers, monkeypatch):
    """Rows of V, more than go into one pass, against one by one; each costs what it costs by itself."""
    monkeypatch.setattr(curvature, "NUMBERS_AT_ONCE", numbers)
    model, w, parts = problem(task, l2=0.3)
    counted = []
    product = curvature_product(model, w, parts, matrix=matrix, batch_size=4, count=counted.append)
    V = torch.randn(11, model.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together, before = product(V), V.clone()
    assert sum(counted) == 11 * sum(SIZES)
    torch.testing.assert_close(together, torch.stack([product(v) for v in V]), **EXACT)
    torch.testing.assert_close(together, V @ dense(model, w, parts, matrix), **EXACT)
    assert torch.equal(V, before)
    assert product(V[:0]).shape == (0, model.d)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("net", [simple_cnn(3, 8, 3, (2, 3, 3), 4), SmallResNet(3, 3, (2, 4))])
def test_several_vectors_pass_through_convolutions(net, matrix):
    model = FlatModel(net)
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(5, 3, 8, 8, generator=g), torch.tensor([0, 1, 2, 1, 0])
    w, V = model.init(0), torch.randn(3, model.d, generator=g)
    product = curvature_product(model, w, [(1.0, (x, y))], matrix=matrix, batch_size=2)
    torch.testing.assert_close(product(V), torch.stack([product(v) for v in V]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_several_vectors_through_layers_written_out(matrix):
    model = FlatModel(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3))
    )
    w, parts = model.init(0, torch.float64), list(zip(WEIGHTS, drawn("classification"), strict=True))
    V = torch.randn(11, model.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = curvature_product(model, w, parts, matrix=matrix, batch_size=4)(V)
    torch.testing.assert_close(ours, V @ dense(model, w, parts, matrix), **EXACT)


def test_products_leave_their_inputs_alone():
    model, w, parts = problem("classification", l2=0.1)
    v = torch.ones_like(w)
    before = w.clone()
    first = curvature_product(model, w, parts)(v)
    kept = first.clone()
    curvature_product(model, w, parts)(2 * v)
    assert torch.equal(w, before)
    assert torch.equal(v, torch.ones_like(w))
    assert torch.equal(first, kept)


def test_a_client_without_data_or_weight_has_no_part():
    model, w, parts = problem("classification")
    x, y = parts[0][1]
    more = [*parts, (0.0, (x[:0], y[:0]))]
    v = torch.ones_like(w)
    assert torch.equal(curvature_product(model, w, more)(v), curvature_product(model, w, parts)(v))
    assert torch.equal(fisher_diagonal(model, w, more), fisher_diagonal(model, w, parts))


@pytest.mark.parametrize("make", [curvature_product, fisher_diagonal])
def test_the_curvature_of_no_data_is_refused(make):
    model, w, parts = problem("classification")
    x, y = parts[0][1]
    for nothing in ([], [(0.0, (x, y))], [(1.0, (x[:0], y[:0]))], [*parts, (0.5, (x[:0], y[:0]))]):
        with pytest.raises(InvalidRequest, match="parts must hold samples with a weight"):
            make(model, w, nothing)


def test_bad_parameters_are_named():
    model, w, parts = problem("classification")
    with pytest.raises(ValueError, match=r"matrix must be one of .* did you mean 'hessian'"):
        curvature_product(model, w, parts, matrix="hesian")
    with pytest.raises(ValueError, match="batch_size must be a whole number >= 1, got 0"):
        curvature_product(model, w, parts, batch_size=0)
