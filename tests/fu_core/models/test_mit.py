"""MiT-B0: the paper's sizes, derivatives of the library's net, and a checkpoint as the start."""

import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.func import functional_call

from fu_core.errors import CorruptData, DataUnavailable, UnsupportedModel
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, train_client
from fu_core.models import FlatModel, Standardize
from fu_core.models.mit import load_pretrained, mit_b0
from fu_core.models.resnet import SmallResNet
from fu_core.unlearning.baselines.weight_negation import first_layer
from fu_papers.look import published
from tests.nets import check_hessian_products

pytest.importorskip("transformers", reason='MiT-B0 is an extra: pip install "fu_core[transformers]"')

ENCODER = 3_319_392


@pytest.fixture(scope="module")
def net():
    """Ten classes, in float64, on a batch of three."""
    model = FlatModel(mit_b0(3, 32, 10))
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return model, model.init(0, torch.float64), x, torch.tensor([7, 1, 4])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder as of nvidia/mit-b0, with ImageNet's head, and the net that was saved there."""
    folder = tmp_path_factory.mktemp("mit-b0")
    imagenet = mit_b0(3, 224, 1000)
    imagenet.net.save_pretrained(folder)
    return folder, imagenet


@pytest.mark.parametrize(("classes", "parameters"), [(100, 3_345_092), (1000, 3_576_392)])
def test_parameter_counts(classes, parameters):
    assert FlatModel(mit_b0(3, 224, classes)).d == parameters == ENCODER + 256 * classes + classes


def test_pufs_bytes_are_the_encoders_and_its_text_counts_imagenets_head():
    """Errata P4. The storage of every method is 4P, or a multiple of it, and is printed to three digits."""
    rows = published("puf", "table_iii").query("model == 'MiT-B0'").set_index("method")
    (printed,) = {f"{rows.storage_bytes[method]:.2e}" for method in ("PUF-Special", "PUF-Regular", "NoT", "FedAU")}
    assert printed == f"{4 * ENCODER:.2e}" == "1.33e+07"
    assert f"{4 * FlatModel(mit_b0(3, 224, 100)).d:.2e}" == "1.34e+07"  # with the head that is trained and sent
    assert f"{FlatModel(mit_b0(3, 224, 1000)).d / 1e6:.1f}" == "3.6"


@pytest.mark.parametrize(("channels", "side"), [(3, 32), (1, 64), (3, 224)])
def test_sides_of_multiples_of_32_are_classified(channels, side):
    model = FlatModel(mit_b0(channels, side, 7))
    assert model.logits(model.init(0), torch.zeros(2, channels, side, side)).shape == (2, 7)


def test_other_sides_are_refused():
    with pytest.raises(UnsupportedModel, match="multiple of 32, got 28"):
        mit_b0(1, 28, 10)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedModel, match=r'pip install "fu_core\[transformers\]"'):
        mit_b0(3, 32, 10)


def test_gradient_is_the_librarys(net):
    model, w, x, y = net
    free = {name: p.detach().clone().requires_grad_() for name, p in model.views(w).items()}
    outputs = functional_call(model.module, free, (x,))
    gradient = torch.autograd.grad(nn.functional.cross_entropy(outputs, y), list(free.values()))
    plain = torch.cat([g.reshape(-1) for g in gradient])
    torch.testing.assert_close(model.grad(w, x, y), plain)
    torch.testing.assert_close(model.per_sample_grads(w, x, y).mean(dim=0), plain)


def test_hessian_products_equal_central_differences(net):
    check_hessian_products(net, h=1e-6, rtol=1e-5, atol=1e-5)


def test_losses_of_many_models_equal_the_losses_of_each(net):
    model, w, x, y = net
    W = torch.stack([w, 1.1 * w])
    stacked = {name: torch.stack([model.views(row)[name] for row in W]) for name in model.names}
    xs, ys = torch.stack([x, x.flip(0)]), torch.stack([y, y])
    each = torch.stack([model.sample_losses(model.logits(W[k], xs[k]), ys[k]) for k in range(2)])
    torch.testing.assert_close(model.losses_of_many(stacked, xs, ys), each)


def test_nothing_is_random_in_either_mode(net):
    _, w, x, _ = net
    model = FlatModel(mit_b0(3, 32, 10))
    training = model.logits(w, x)
    assert torch.equal(training, model.logits(w, x))
    model.module.eval()
    assert torch.equal(training, model.logits(w, x))


def test_the_fast_memory_order_changes_nothing(net):
    model, w, x, _ = net
    torch.testing.assert_close(model.logits(w, model.arrange(x)), model.logits(w, x))


def test_every_weight_is_drawn_anew_with_another_seed(net):
    model = net[0]
    ours, other = (model.views(model.init(seed)) for seed in (0, 1))
    for name, value in ours.items():
        if value.dim() > 1:
            assert not torch.equal(value, other[name]), name
        else:  # norms at one and zero, biases at zero
            assert torch.equal(value, torch.full_like(value, "norm" in name and name.endswith("weight"))), name


def test_a_depthwise_convolution_starts_at_the_scale_of_one_channel(net):
    model = net[0]
    depthwise = [v for v in model.views(model.init(0)).values() if v.dim() == 4 and v.shape[1] == 1]
    assert len(depthwise) == 8  # two blocks in each of four stages
    for weight in depthwise:
        assert weight.std() == pytest.approx((2 / 9) ** 0.5, rel=0.1)


def test_the_first_layer_cuts_the_patches(net):
    model, _, x, _ = net
    first = first_layer(model, model.init(0), x[:1].float())
    assert model.views(model.init(0))[f"{first}.weight"].shape == (32, 3, 7, 7)


def test_it_learns():
    model, g = FlatModel(mit_b0(1, 32, 2)), torch.Generator().manual_seed(0)
    y = torch.arange(8) % 2
    x = torch.rand(8, 1, 32, 32, generator=g) + y.view(-1, 1, 1, 1)
    w = model.init(0)
    opt = ClientOpt(optimiser="adam", lr=1e-3, epochs=10)
    after = train_client(Federation(model, [(x, y)], opt), w, 0, 1)
    assert model.loss(after, x, y) < 0.5 * model.loss(w, x, y)


def test_a_checkpoint_gives_the_encoder_and_not_the_head(checkpoint):
    folder, imagenet = checkpoint
    model = FlatModel(nn.Sequential(Standardize(torch.zeros(3), torch.ones(3)), mit_b0(3, 64, 100)))
    views = model.views(load_pretrained(model, folder))
    for name, parameter in imagenet.net.segformer.named_parameters():
        assert torch.equal(views[f"1.net.segformer.{name}"], parameter), name
    fresh, other = (model.views(start) for start in (model.init(0), load_pretrained(model, folder, seed=1)))
    assert torch.equal(views["1.net.classifier.weight"], fresh["1.net.classifier.weight"])
    assert not torch.equal(views["1.net.classifier.weight"], other["1.net.classifier.weight"])


def test_a_bare_net_and_one_with_imagenets_classes_get_a_new_head_too(checkpoint):
    folder, imagenet = checkpoint
    model = FlatModel(mit_b0(3, 64, 1000))
    views = model.views(load_pretrained(model, folder))
    assert not torch.equal(views["net.classifier.weight"], imagenet.net.classifier.weight)
    first = next(iter(imagenet.parameters()))
    assert torch.equal(next(iter(views.values())), first)


def test_checkpoints_have_the_names_of_the_published_one(checkpoint):
    """So that the test before this one stands for nvidia/mit-b0, which an older version of the library wrote."""
    names = load_file(checkpoint[0] / "model.safetensors")
    assert names["segformer.encoder.patch_embeddings.0.proj.weight"].shape == (32, 3, 7, 7)
    assert "segformer.encoder.block.3.1.attention.self.query.weight" in names


def test_a_checkpoint_may_be_a_pickle_of_weights(checkpoint, tmp_path):
    folder, _ = checkpoint
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    model = FlatModel(mit_b0(3, 32, 10))
    assert torch.equal(load_pretrained(model, tmp_path), load_pretrained(model, folder))


def test_unusable_checkpoints_are_refused_by_name(checkpoint, tmp_path):
    folder, _ = checkpoint
    model = FlatModel(mit_b0(3, 32, 10))
    with pytest.raises(DataUnavailable, match="no such folder"):
        load_pretrained(model, tmp_path / "nowhere")
    with pytest.raises(DataUnavailable, match=r"model\.safetensors"):
        load_pretrained(model, tmp_path)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100_000])
    with pytest.raises(CorruptData, match="cannot be read"):
        load_pretrained(model, tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["segformer.encoder.layer_norm.3.bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CorruptData, match="1 weights are missing"):
        load_pretrained(model, tmp_path)


def test_a_checkpoint_for_another_net_is_refused(checkpoint):
    folder, _ = checkpoint
    with pytest.raises(CorruptData, match="for 1 channels, but 1 weights are missing or of another shape"):
        load_pretrained(FlatModel(mit_b0(1, 32, 10)), folder)
    with pytest.raises(UnsupportedModel, match="SmallResNet"):
        load_pretrained(FlatModel(SmallResNet(3, 10)), folder)
