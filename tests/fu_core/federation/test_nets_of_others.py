"""Nets and data that are not ours: the ways of training agree on them, or one clear error says why not."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from fu_core import partition
from fu_core.errors import InvalidRequest, UnsupportedModel, UnsupportedTask
from fu_core.federation import ClientOpt, Federation, fedavg, fedavg_many
from fu_core.federation import together as ways
from fu_core.federation.augment import augment
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.graphs import Peers, complete
from fu_core.federation.horizontal import fedavg_round
from fu_core.federation.together import train_round
from fu_core.models import flat
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from tests.federations import vertical

SIZES = (7, 12, 3)


def clients(*shape, sizes=SIZES, classes=3, draw=torch.randn):
    g = torch.Generator().manual_seed(0)
    return [(draw(n, *shape, generator=g), torch.randint(classes, (n,), generator=g)) for n in sizes]


def check_the_ways_agree(module, of, hows=("auto",), task="classification", **local):
    """Each of `hows` trains what the plain loop does, which is not nothing."""
    f = Federation(FlatModel(module, task), of, ClientOpt(lr=0.1, batch_size=5, **local), how="loop")
    w = f.model.init(0)
    loop = train_round(f, w, 1)
    assert loop.abs().max() > 1e-3
    for how in hows:
        torch.testing.assert_close(train_round(f.having(how=how), w, 1), loop, rtol=1e-4, atol=1e-6)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Warm(nn.Linear):
    """A linear layer with a temperature, a parameter without a dimension."""

    def __init__(self):
        super().__init__(4, 3)
        self.temperature = nn.Parameter(torch.ones(()))

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "temperature"):
            nn.init.ones_(self.temperature)

    def forward(self, x):
        return super().forward(x) / self.temperature


class Viewing(nn.Module):
    """The convolutional net of the tutorials: it asks with `view` for what memory need not hold together."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(36, 3)

    def forward(self, x):
        h = torch.max_pool2d(self.conv(x), 2)
        return self.head(h.view(-1, 36))


class StandardisedConv(nn.Conv2d):
    """Weights are standardised filter by filter, through a view of them."""

    def forward(self, x):
        weight = self.weight.view(self.out_channels, -1)
        weight = (weight - weight.mean(1, keepdim=True)).view(self.weight.shape)
        return nn.functional.conv2d(x, weight, self.bias)


def tied(shared):
    """One layer twice, or two layers with one weight."""
    first, second, last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
    if shared == "weight":
        second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), first if shared == "layer" else second, nn.ReLU(), last)


@pytest.mark.parametrize("shared", ["layer", "weight"])
def test_layers_that_share_a_weight_are_trained_as_they_are(shared):
    """Written out by names, of which a shared weight has one, the net lost a layer."""
    check_the_ways_agree(tied(shared), clients(4), hows=("auto", "vmap"))
    assert FlatModel(tied(shared)).dense_tail is None


def test_hooks_are_no_part_of_what_is_written_out():
    hooked = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    assert FlatModel(hooked).dense_tail is not None
    hooked[0].register_forward_hook(lambda module, given, output: 2 * output)
    assert FlatModel(hooked).dense_tail is None


@pytest.mark.parametrize("option", ["padding_idx", "scale_grad_by_freq"])
def test_an_embedding_with_padding_is_trained_client_by_client(option):
    """torch's rule for many embeddings at once keeps the padding row of the first model only."""
    words = [
        (torch.randint(5, (n, 3), generator=stream(n, "words")), y) for n, (_, y) in zip(SIZES, clients(4), strict=True)
    ]
    embedding = nn.Embedding(5, 4, **{option: {"padding_idx": 0}.get(option, True)})
    net = nn.Sequential(embedding, nn.Flatten(), nn.Linear(12, 3))
    check_the_ways_agree(net, words)
    with pytest.raises(UnsupportedModel, match=r"got 'vmap': layer '0' is an nn\.Embedding with padding_idx"):
        train_round(Federation(FlatModel(net), words, how="vmap"), FlatModel(net).init(0), 1)


def test_what_torch_cannot_step_together_is_trained_client_by_client():
    sequences = clients(6, 4)
    check_the_ways_agree(Recurrent(), sequences)
    with pytest.raises(
        UnsupportedModel, match="how must be 'loop' or 'auto' for this federation, got 'vmap': Batching"
    ):
        train_round(Federation(FlatModel(Recurrent()), sequences, how="vmap"), FlatModel(Recurrent()).init(0), 1)


def test_clients_whose_samples_differ_in_shape_are_trained_one_by_one():
    long = [(x[:, : 4 + k], y) for k, (x, y) in enumerate(clients(8, 4))]
    check_the_ways_agree(Recurrent(), long)
    with pytest.raises(UnsupportedModel, match="its clients' samples differ in shape"):
        train_round(Federation(FlatModel(Recurrent()), long, how="vmap"), FlatModel(Recurrent()).init(0), 1)


def test_a_parameter_may_be_a_number():
    check_the_ways_agree(Warm(), clients(4), hows=("auto", "vmap"))


def test_a_regression_of_several_numbers_has_several_clients():
    held = [(x, torch.randn(len(x), 5, generator=stream(0, "targets"))) for x, _ in clients(4)]
    check_the_ways_agree(nn.Linear(4, 5), held, hows=("auto", "vmap"), task="regression")


@pytest.mark.parametrize("net", [Viewing(), nn.Sequential(StandardisedConv(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))])
def test_nets_that_ask_for_views_get_memory_that_has_them(net):
    images = clients(3, 8, 8)
    check_the_ways_agree(net, images, hows=("auto", "vmap"))
    model = FlatModel(net)
    w, x = model.init(0), images[0][0]
    torch.testing.assert_close(model.predict(w, x), model.logits(w, x))


def test_labels_of_any_whole_type_and_too_large_ones_are_named():
    net = nn.Linear(4, 3)
    check_the_ways_agree(net, [(x, y.byte()) for x, y in clients(4)], hows=("auto", "vmap", "dense"))
    wrong = [*clients(4)[:2], (clients(4)[2][0], torch.tensor([0, 3, 1]))]
    for how in ("loop", "vmap", "dense"):
        with pytest.raises(InvalidRequest, match=r"labels must be below .* outputs, got 3 at client 2"):
            train_round(Federation(FlatModel(net), wrong, how=how), FlatModel(net).init(0), 1)


def test_labels_below_zero_are_named_and_nobody_elses():
    net, (good, bad) = nn.Linear(4, 3), [(x, torch.tensor(y)) for x, y in zip(
        (clients(4)[0][0][:3], clients(4)[1][0][:3]), ([0, 2, 1], [0, -1, 1]), strict=True)]  # fmt: skip
    for how in ("loop", "vmap", "dense"):
        with pytest.raises(InvalidRequest, match="labels must be 0 or more, got -1 at client 1"):
            train_round(Federation(FlatModel(net), [good, bad], how=how), FlatModel(net).init(0), 1)


def test_labels_that_are_whole_numbers_may_be_floats_and_others_are_refused():
    """They had been cut off by one way of training and refused by the others."""
    net = nn.Linear(4, 3)
    check_the_ways_agree(net, [(x, y.float()) for x, y in clients(4)], hows=("auto", "vmap", "dense", "loop"))
    halves = [*clients(4)[:2], (clients(4)[2][0], clients(4)[2][1] + 0.5)]
    with pytest.raises(InvalidRequest, match=r"client 2 must hold whole numbers as labels, got \d\.5"):
        Federation(FlatModel(net), halves)


def test_one_wrong_call_spoils_no_model():
    """It had been taken for what the net can do, ever after: images in an order that `view` refuses, and no vmap."""
    images, model = clients(3, 8, 8), FlatModel(Viewing())
    w, (x, y) = model.init(0), images[0]
    with pytest.raises(RuntimeError, match="channels"):
        model.predict(w, torch.cat([x, x], dim=1))
    torch.testing.assert_close(model.predict(w, x), model.logits(w, x))

    plain = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 3), nn.LayerNorm(3)))
    assert "out of bounds" in plain.alone_for(x, torch.full_like(y, 7))
    assert plain.alone_for(x, y) == ""


# --- what is no function of parameters and sample --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.Dropout(0.5), r"layer '1' \(Dropout\) draws numbers from no stream"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), r"\(MultiheadAttention\) draws numbers"),
        (nn.LSTM(4, 4, 2, dropout=0.1), r"\(LSTM\) draws numbers"),
        (nn.BatchNorm1d(4, track_running_stats=False), "makes a sample's output depend on its batch; use GroupNorm"),
        (nn.BatchNorm1d(4), "keeps running statistics"),
        (nn.Linear(4, 4).requires_grad_(False), "parameter '1.weight' must have requires_grad=True"),
    ],
)
def test_nets_that_are_no_function_of_their_parameters_are_refused(layer, why):
    with pytest.raises(UnsupportedModel, match=why):
        FlatModel(nn.Sequential(nn.Linear(4, 4), layer))


def test_dropout_that_is_off_is_a_layer_like_others():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5).eval(), nn.Dropout(0.0), nn.Linear(5, 3))
    check_the_ways_agree(net, clients(4), hows=("auto", "vmap"))


def test_a_net_without_parameters_is_refused():
    with pytest.raises(UnsupportedModel, match="ReLU has no parameters"):
        FlatModel(nn.ReLU())


class Adapted(nn.Linear):
    """A linear layer with parameters that its initialiser, nn.Linear's, does not know."""

    def __init__(self):
        super().__init__(4, 3)
        self.a = nn.Parameter(torch.randn(2, 4))


@pytest.mark.parametrize(("module", "name"), [(weight_norm(nn.Linear(4, 3)), "original"), (Adapted(), "'a'")])
def test_a_seed_draws_every_parameter_or_none(module, name):
    """They kept what they had had when the net was made, whatever the seed."""
    with pytest.raises(UnsupportedModel, match=f"no initialiser for parameter .*{name}"):
        FlatModel(module).init(0)


def test_numpy_counts_as_seeds_too():
    f = Federation(FlatModel(nn.Linear(4, 3)), clients(4))
    assert torch.equal(f.model.init(np.int64(2)), f.model.init(2))
    expected = fedavg_many(f, [0, 1], 1)
    assert torch.equal(fedavg_many(f, np.arange(2), 1), expected)
    assert torch.equal(fedavg_many(f, torch.arange(2), 1), expected)


# --- augmentation ----------------------------------------------------------------------------------------------------


def test_masks_stay_where_their_image_is():
    model = FlatModel(nn.Conv2d(1, 2, 3, padding=1), task="segmentation")
    images = [(torch.rand(4, 1, 8, 8), torch.zeros(4, 8, 8))]
    with pytest.raises(UnsupportedTask, match="augmentation must be 'none' for segmentation"):
        Federation(model, images, ClientOpt(augmentation="flip_crop"))


def test_vertical_parties_refuse_augmentation():
    with pytest.raises(UnsupportedTask, match="augmentation must be 'none' among vertical parties"):
        vertical().federation.having(local=ClientOpt(augmentation="flip_crop"))


def test_augmented_images_keep_their_type():
    x = torch.rand(5, 3, 8, 8, dtype=torch.float64)
    moved = augment(x, "rotate_flip_crop", stream(0, "augment"))
    assert moved.dtype == torch.float64
    fill = x.mean(dim=(0, 2, 3), keepdim=True)
    nearest = (moved[..., None] - torch.cat([x, fill.expand(5, 3, 1, 8)], dim=2).flatten(2)[:, :, None, None]).abs()
    assert nearest.min(dim=-1).values.max() < 1e-15  # by way of float32 it was 1e-8


@pytest.mark.parametrize("kind", ["flip_crop", "rotate_flip_crop"])
def test_no_images_have_no_variants(kind):
    """The mean pixel of none would be NaN."""
    x = torch.zeros((0, 3, 8, 8), dtype=torch.uint8)
    assert augment(x, kind, stream(0, "augment")) is x


def test_an_unknown_augmentation_is_named():
    """It was taken for flip_crop."""
    with pytest.raises(ValueError, match=r"kind must be one of 'none', .* got 'rotate'"):
        augment(torch.zeros(2, 3, 8, 8), "rotate", stream(0, "augment"))


@pytest.mark.parametrize("shape", [(65, 129), (129, 65), (97, 97)])
def test_turns_are_as_large_as_they_say_whatever_the_shape(shape):
    """Measured on a long bar through the middle: at most 21.6 degrees, and nearly that in the largest of many."""
    x = torch.zeros(400, 1, *shape)
    x[:, 0, shape[0] // 2, :] = 1.0
    turned = augment(x, "rotate_flip_crop", stream(0, "augment"))[:, 0] > 0.5
    angles = []
    for picture in turned:
        rows, columns = picture.nonzero().double().T
        angles.append(
            torch.rad2deg(
                torch.atan2(rows[columns.argmax()] - rows[columns.argmin()], columns.max() - columns.min())
            ).abs()
        )
    assert 18 < max(angles) < 24


# --- memory, counting, what belongs to whom --------------------------------------------------------------------------


def test_small_clients_are_not_padded_to_a_large_ones_size(monkeypatch):
    uneven = clients(4, sizes=(200, 3, 5, 4, 6, 2))
    gathered = []
    rows = ways._rows
    monkeypatch.setattr(ways, "_rows", lambda held, index: gathered.append(index.numel()) or rows(held, index))
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    f = Federation(FlatModel(net), uneven, ClientOpt(lr=0.1, batch_size=1000))
    w = f.model.init(0)
    whole = train_round(f, w, 1)
    assert max(gathered) == 6 * 200
    gathered.clear()
    monkeypatch.setattr(ways, "MOST_PADDED", 250)
    torch.testing.assert_close(train_round(f, w, 1), whole, rtol=1e-5, atol=1e-7)
    assert max(gathered) <= 2 * 200
    torch.testing.assert_close(train_round(f.having(how="loop"), w, 1), whole, rtol=1e-5, atol=1e-7)


def test_features_that_are_too_many_are_made_batch_by_batch(monkeypatch):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    f = Federation(FlatModel(net), clients(3, 2, 2), ClientOpt(lr=0.1, batch_size=5), how="dense")
    w = f.model.init(0)
    kept, sizes = train_round(f, w, 1), []
    monkeypatch.setattr(flat, "MOST_FEATURES", 10)
    features = FlatModel.features
    monkeypatch.setattr(FlatModel, "features", lambda self, x, like: sizes.append(len(x)) or features(self, x, like))
    assert torch.equal(train_round(f, w, 1), kept)
    assert max(sizes) <= 3 * 5


@pytest.mark.parametrize("how", ["loop", "vmap", "dense"])
def test_a_missing_value_is_its_own_clients_matter(how):
    held = clients(4)
    held[0][0][0] = torch.nan
    f = Federation(FlatModel(nn.Linear(4, 3)), held, ClientOpt(batch_size=5), how=how)
    assert fedavg_many(f, [0], 1, of=[[1, 2]]).isfinite().all()
    with pytest.raises(RuntimeError, match="client 0, round 1"):
        train_round(f, f.model.init(0), 1, [2, 1, 0])


@pytest.mark.parametrize("how", ["loop", "vmap", "auto"])
def test_a_start_that_wants_gradients_gets_none(how):
    f = Federation(FlatModel(nn.Linear(4, 3)), clients(4), how=how)
    assert not fedavg(f, f.model.init(0).requires_grad_(), 2).requires_grad


def test_what_a_trainer_returns_is_its_own_and_has_a_row_per_client():
    model, own = FlatModel(nn.Linear(4, 3)), torch.ones(3, 15)
    f = Federation(model, clients(4), exchange=Peers(complete(3)), how=lambda *_: own)
    assert (dpsgd(f, torch.zeros(15), 3) == 3).all()
    assert (own == 1).all()
    for wrong in (own[0], own[:2], own[:, :1], [1.0]):
        with pytest.raises(ValueError, match=r"how must return updates of shape \(3, 15\), a row per client, got"):
            fedavg(Federation(model, clients(4), how=lambda *_, wrong=wrong: wrong), model.init(0), 1)


def test_a_client_named_twice_takes_part_once():
    f = Federation(FlatModel(nn.Linear(4, 3)), clients(4))
    w, _ = fedavg_round(f, f.model.init(0), 1, ids=[0, 1, 0])
    assert f.meter.bytes == 2 * 2 * 4 * f.model.d
    once, _ = fedavg_round(f, f.model.init(0), 1, ids=[0, 1])
    assert torch.equal(w, once)


def test_numbers_of_numpy_are_numbers():
    """A sweep over np.arange or over float32 was refused: "must be a finite number > 0, got np.float32(0.25)"."""
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    model = FlatModel(nn.Linear(3, 2))

    def trained(lr, count):
        held = partition.dirichlet(y, count(4), alpha=lr, seed=count(1))
        f = Federation(
            model, [(x[rows], y[rows]) for rows in held], ClientOpt(lr=lr, epochs=count(2), batch_size=count(5)), seed=1
        )
        return fedavg(f, model.init(count(1)), count(3))

    assert torch.equal(trained(np.float32(0.25), np.int64), trained(0.25, int))
    for refused in (np.float32("nan"), np.bool_(True), "0.1"):
        with pytest.raises(ValueError, match="lr must be a finite number > 0"):
            ClientOpt(lr=refused)
