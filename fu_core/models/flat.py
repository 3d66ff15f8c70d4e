"""A model is a vector: `FlatModel` binds a torch module to one flat parameter tensor `w` of shape (d,).

Everything is a pure function of `w`; the module itself only supplies the wiring. Parameters follow
the order of `module.named_parameters()`, each flattened row by row.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap
from torch.nn import functional as F

from fu_core.errors import UnsupportedModel, check_choice, check_count, check_not_negative
from fu_core.models.pure import redraw, refuse_what_is_not_pure
from fu_core.models.standardize import Standardize as Standardize
from fu_core.streams import whole_seed

TASKS = ("classification", "segmentation", "regression")
MOST_FEATURES = 2**28  # numbers, 1 GiB of float32: what features kept for later passes may take
# samples that evaluation passes through a net in one call. On a processor as many as its cache holds the activations
# of: small convolutional nets take twice as long by the thousand. An accelerator wants few calls.
EVALUATED_AT_ONCE = {"cpu": 125}
NO_LABEL = -(2**63)  # the label that cross-entropy passes over without a word: torch's -100 can stand in real data


class FlatModel:
    """Pure functions of a flat parameter vector `w` (d,) around `module`.

    `task` fixes the loss: "classification" (mean cross-entropy; logits (n, C), labels (n,)),
    "segmentation" (cross-entropy plus soft Dice per image; logits (n, 2, H, W), masks (n, H, W)),
    "regression" (half the mean squared error; outputs (n, 1) or (n,), targets (n,)).
    `l2` adds `l2/2 * |w|^2` to the loss. Raises `UnsupportedModel` for modules that are no function of parameters and
    sample alone: that keep running statistics, which a method that negates or extrapolates parameters would leave
    behind, look at the whole batch, draw numbers, or hold parameters that must not move.

    Not for several threads at once, which would find each other's parameters in the module.
    """

    def __init__(self, module: nn.Module, task: str = "classification", l2: float = 0.0) -> None:
        check_choice("task", task, TASKS)
        refuse_what_is_not_pure(module)
        self.module = copy.deepcopy(module)
        self.task = task
        check_not_negative("l2", l2)
        self.l2 = float(l2)
        named = dict(self.module.named_parameters())
        self.names = list(named)
        self.shapes = [tuple(p.shape) for p in named.values()]
        self.sizes = [p.numel() for p in named.values()]
        self.d = sum(self.sizes)
        self._slots = _slots(self.module)
        self._any_order: bool | None = None  # whether images may come in any memory order, see `arrange`
        self._alone: str | None = None  # see `alone_for`
        self._buffers: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Fresh parameters (d,): the modules' own initialisers, drawn from `seed` alone.

        Raises ValueError for a seed that is no whole number, or a dtype that is none of floating point.
        """
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype must be one of floating point, torch.float64 say, got {dtype!r}")
        seed = whole_seed(seed)
        with torch.random.fork_rng(devices=[]):
            # not torch.manual_seed, which takes five times as long to seed accelerators that nothing is drawn on here
            torch.default_generator.manual_seed(seed % 2**64)  # of which torch has no more
            redraw(self._drawn)
        for name, parameter in self._drawn.named_parameters():
            if parameter.isnan().any():
                raise UnsupportedModel(f"no initialiser for parameter {name!r}: give its module reset_parameters()")
        with torch.no_grad():
            return torch.cat([p.reshape(-1) for p in self._drawn.parameters()]).to(dtype)

    @cached_property
    def _drawn(self) -> nn.Module:
        """A copy for `init` to draw parameters in, made once: copying a small net takes longer than drawing it."""
        return copy.deepcopy(self.module).cpu()

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Named tensors that share storage with `w`, in module order. Raises ValueError for another shape than (d,)."""
        if not isinstance(w, Tensor) or w.shape != (self.d,):
            given = f"shape {tuple(w.shape)}" if isinstance(w, Tensor) else type(w).__name__
            raise ValueError(f"w must be a vector of the model's {self.d} parameters, got {given}")
        # split, not slicing: its backward is one concatenation instead of a zero-filled (d,) per layer
        pieces = w.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, pieces, self.shapes, strict=True)}

    def layers(self, w: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Copies of `views`, in the memory order that convolutions of `arrange(x)` want them in.

        A training that keeps them so spares every step the copies into that order, and its gradient's way back.
        """
        images = torch.contiguous_format if self._plain(x) else torch.channels_last
        return {
            name: layer.clone(memory_format=images if layer.dim() == 4 else torch.contiguous_format)
            for name, layer in self.views(w.detach()).items()
        }

    def joined(self, layers: Mapping[str, Tensor]) -> Tensor:
        """The vector (d,) whose `views` are `layers`, in whatever memory order; a module's `state_dict()` is such.

        Raises ValueError for layers that are missing or of another shape.
        """
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in layers or layers[name].shape != shape:
                given = f"shape {tuple(layers[name].shape)}" if name in layers else f"none among {len(layers)} layers"
                raise ValueError(f"layers must have {name!r} of shape {shape}, got {given}")
        return torch.cat([layers[name].reshape(-1) for name in self.names])

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """The module's output for raw inputs `x` (n, ...)."""
        return self._outputs(self.views(w), x)

    def _outputs(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        like = next(iter(parameters.values()))
        with _holding(self._slots, {**parameters, **self._constants(like)}):
            return self.module(x)

    def arrange(self, x: Tensor) -> Tensor:
        """`x` in the memory order its convolutions run fastest in: 1.5 to 2x on small images, one core.

        Left as it is where the net asks with `view` for what lies apart in that order, which a first pass of two
        samples tells.
        """
        return x if self._plain(x) else _channels_last(x)

    def _plain(self, x: Tensor) -> bool:
        if x.dim() != 4 or len(x) == 0:  # which would pass through any net, and tell nothing
            return True
        if self._any_order is None:
            own = {
                name: p.detach().clone(memory_format=torch.channels_last if p.dim() == 4 else torch.contiguous_format)
                for name, p in self.module.named_parameters()
            }
            like = next(iter(own.values()))
            few = x[:2].to(like.device, like.dtype if x.is_floating_point() else x.dtype)
            try:
                with torch.no_grad(), _unwatched(self.module):
                    self._outputs(own, _channels_last(few))
            except (RuntimeError, ValueError) as error:
                if "view size is not compatible" not in str(error):
                    return False  # the caller's mistake, which tells nothing of the net
                self._any_order = False
            else:
                self._any_order = True
        return not self._any_order

    def loss(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the samples, a scalar."""
        data_term = self.data_loss(self.views(w), x, self.labels(y))
        return data_term + 0.5 * self.l2 * w.dot(w) if self.l2 else data_term

    def data_loss(self, layers: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The mean of `sample_losses` with these parameters, a scalar without the l2 term."""
        return self.sample_losses(self._outputs(layers, x), y).mean()

    def losses_of_many(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """`sample_losses` of K models, each on a batch of its own: x (K, B, ...), y (K, B, ...) to (K, B).

        `parameters`: one (K, *shape) tensor per name of `views`, rather than a (K, d) matrix, whose rows
        would have to be cut into layers, and the gradients glued together again, in every step. Only the
        forward pass is vmapped; the loss sees one long batch, which spares it vmap's overhead.
        """

        def one_model(x_k: Tensor, *layers: Tensor) -> Tensor:
            return self._outputs(dict(zip(parameters, layers, strict=True)), x_k)

        outputs = vmap(one_model)(x, *parameters.values())  # (K, B, classes)
        losses = self.sample_losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(*outputs.shape[:2], -1)
        return losses[..., 0] if losses.shape[2] == 1 else losses.mean(2)  # several numbers of one sample's regression

    def alone_for(self, x: Tensor, y: Tensor) -> str:
        """Why `losses_of_many` or its gradient cannot be had for samples like these, in torch's words; empty if it can.

        Found out once, with two models and a sample of each; what a plain pass cannot take either tells nothing.
        """
        if self._alone is None:
            own = {name: torch.stack([p.detach()] * 2).requires_grad_() for name, p in self.module.named_parameters()}
            like = next(iter(own.values()))
            few, labels = x[:1].to(like.device), y[:1].to(like.device)
            if x.is_floating_point():
                few = few.to(like.dtype)
            if y.is_floating_point():
                labels = labels.to(like.dtype)
            try:
                losses = self.losses_of_many(own, torch.stack([few] * 2), torch.stack([labels] * 2))
                torch.autograd.grad(losses.sum(), list(own.values()), allow_unused=True)
            except Exception as error:  # whatever a net of somebody else's does where it is vmapped
                told = str(error).splitlines()[0] or type(error).__name__
                with suppress(Exception), torch.no_grad():
                    self.data_loss(dict(self.module.named_parameters()), few, labels)
                    self._alone = told
                return told
            self._alone = ""
        return self._alone

    def labels(self, y: Tensor) -> Tensor:
        """`y` as `sample_losses` takes it, which casts nothing in a training's every step: classes (n,) as int64."""
        return y.long() if self.task == "classification" and not y.is_floating_point() else y

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample (n,), without the l2 term."""
        if self.task == "classification":
            return F.cross_entropy(outputs, y, reduction="none", ignore_index=NO_LABEL)
        if self.task == "regression":
            if len(outputs) != len(y) or outputs.numel() != y.numel():
                raise ValueError(f"y must have the outputs' shape, {tuple(outputs.shape)}, got {tuple(y.shape)}")
            return 0.5 * (outputs.reshape(y.shape) - y) ** 2
        pixel_loss = F.cross_entropy(outputs, y.long(), reduction="none", ignore_index=NO_LABEL).mean(dim=(1, 2))
        return pixel_loss + soft_dice_loss(outputs, y)

    def grad(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of the mean loss (d,)."""
        leaf = w.detach().requires_grad_()
        (g,) = torch.autograd.grad(self.loss(leaf, x, y), leaf)
        return g

    def hvp(self, w: Tensor, v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Hessian of the mean loss times `v` (d,), exact (forward over reverse); memory O(d)."""
        gradient: Callable[[Tensor], Tensor] = grad(lambda p: self.loss(p, x, y))
        return jvp(gradient, (w,), (v,))[1]

    def per_sample_grads(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """One gradient per sample (n, d); their mean is `grad`."""

        def one(p: Tensor, xi: Tensor, yi: Tensor) -> Tensor:
            return self.loss(p, xi.unsqueeze(0), yi.unsqueeze(0))

        return vmap(grad(one), in_dims=(None, 0, 0))(w, x, y)

    @torch.no_grad()
    def predict(self, w: Tensor, x: Tensor, batch_size: int | None = None) -> Tensor:
        """`logits` in batches, without gradients: for evaluation over whole data sets.

        `batch_size`: None for what is fast on the device of `x`; it changes nothing but rounding.
        """
        return torch.cat([self.logits(w, self.arrange(part)) for part in x.split(_size(batch_size, x))])

    @torch.no_grad()
    def predict_losses(self, w: Tensor, x: Tensor, y: Tensor, batch_size: int | None = None) -> Tensor:
        """`sample_losses` (n,) over a whole data set, in batches; `batch_size` as in `predict`."""
        size = _size(batch_size, x)
        parts = zip(x.split(size), self.labels(y).split(size), strict=True)
        return torch.cat([self.sample_losses(self.logits(w, self.arrange(xb)), yb) for xb, yb in parts])

    def only_layer(self) -> nn.Module | None:
        """The one module that holds all parameters, or None if several do. A lone nn.Linear makes the loss convex."""
        holders = [part for part in self.module.modules() if any(True for _ in part.parameters(recurse=False))]
        return holders[0] if len(holders) == 1 else None

    @cached_property
    def dense_tail(self) -> FlatModel | None:
        """The net from its first nn.Linear on, if it is nn.Linear with ReLU between from there on: a classifier, or a
        regression with one output.

        None if it is not, or if layers before it have parameters. Otherwise, with the same `w`,
        `logits(w, x) == dense_tail.logits(w, features(x, w))`.
        """
        before, after = self._parts
        fixed = all(not any(True for _ in part.parameters()) for part in before)
        kinds = [type(part) for part in after]
        dense = kinds[::2] == [nn.Linear] * len(kinds[::2]) and kinds[1::2] == [nn.ReLU] * len(kinds[1::2])
        if type(self) is not FlatModel or self.task == "segmentation" or not fixed or not dense or len(kinds) % 2 == 0:
            return None
        if self.task == "regression" and cast(nn.Linear, after[-1]).out_features > 1:
            return None
        # a weight that several layers share has one name, and what hooks do has none
        own = [list(dict(part.named_parameters(recurse=False))) for part in after[::2]]
        if any(names not in (["weight"], ["weight", "bias"]) for names in own) or sum(map(len, own)) != len(self.names):
            return None
        if any(part._forward_hooks or part._forward_pre_hooks for part in after):
            return None
        return FlatModel(nn.Sequential(*after), self.task, self.l2)

    @cached_property
    def dense_layers(self) -> list[tuple[str, str]]:
        """Names of weight and bias, layer by layer, of a net that is a `dense_tail`; there may be no such bias."""
        return [(name, name.replace("weight", "bias")) for name in self.names if name.endswith("weight")]

    @cached_property
    def _parts(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """The layers before the first nn.Linear, and from it on."""
        layers = in_a_row(self.module)
        first = next((k for k, layer in enumerate(layers) if isinstance(layer, nn.Linear)), len(layers))
        return layers[:first], layers[first:]

    def keeps_features(self, samples: int) -> bool:
        """Whether there is a `dense_tail`, and so many samples are few enough to be kept as its features."""
        return self.dense_tail is not None and samples * self.dense_tail.shapes[0][1] <= MOST_FEATURES

    @torch.no_grad()
    def features(self, x: Tensor, like: Tensor) -> Tensor:
        """What `dense_tail` sees of `x` (n, ...), in the dtype of `like`; `x` itself if nothing comes before."""
        layers, _ = self._parts
        if not layers:
            return x
        before, constants = nn.Sequential(*layers), self._constants(like)
        with _holding([slot for slot in self._slots if slot[0] in constants], constants):
            return torch.cat([before(part) for part in x.split(1000)])

    def _constants(self, w: Tensor) -> dict[str, Tensor]:
        """The module's buffers (normalisation constants) in the dtype and on the device of `w`."""
        key = (w.dtype, w.device)
        if key not in self._buffers:
            # Made inside grad or jvp, they would belong to that transform and be of no use after it.
            with torch._C._DisableFuncTorch():
                self._buffers[key] = {
                    name: b.to(w.device, w.dtype if b.is_floating_point() else b.dtype)
                    for name, b in self.module.named_buffers()
                }
        return self._buffers[key]


Slots = list[tuple[str, dict[str, Tensor | None], str]]


def _slots(module: nn.Module) -> Slots:
    """Where the module keeps each parameter and buffer: (name, the owner's dictionary, the key in it).

    A tied weight has several places and one name, the first.
    """
    first = {id(t): name for name, t in (*module.named_parameters(), *module.named_buffers())}
    places: Slots = []
    for part in module.modules():
        for held in (cast(dict[str, Tensor | None], part._parameters), part._buffers):
            places += [(first[id(t)], held, key) for key, t in held.items() if t is not None]
    return places


@contextmanager
def _holding(slots: Slots, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Put `tensors` in the place of the module's own while the block runs.

    What `torch.func.functional_call` does, with the places looked up once: its search costs a small
    model more than the arithmetic of a step.
    """
    own = [held[key] for _, held, key in slots]
    try:
        for name, held, key in slots:
            held[key] = tensors[name]
        yield
    finally:
        for (_, held, key), tensor in zip(slots, own, strict=True):
            held[key] = tensor


@contextmanager
def _unwatched(module: nn.Module) -> Iterator[None]:
    """Without hooks while the block runs: a pass that only tries something out is nobody's to see."""
    hooks = [(part, part._forward_hooks, part._forward_pre_hooks) for part in module.modules()]
    for part, *_ in hooks:
        part._forward_hooks, part._forward_pre_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for part, after, before in hooks:
            part._forward_hooks, part._forward_pre_hooks = after, before


def _channels_last(x: Tensor) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    # one channel is in both orders at once, and torch would take the slow one: the strides have to say it
    return x.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))


def _at_once(x: Tensor) -> int:
    """How many of the samples `x` to evaluate in one call."""
    return EVALUATED_AT_ONCE.get(x.device.type, 1000)


def _size(batch_size: int | None, x: Tensor) -> int:
    if batch_size is None:
        return _at_once(x)
    check_count("batch_size", batch_size)
    return int(batch_size)


def in_a_row(module: nn.Module) -> list[nn.Module]:
    """The layers of nested nn.Sequential, in order."""
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for part in module for layer in in_a_row(part)]


def soft_dice_loss(outputs: Tensor, masks: Tensor) -> Tensor:
    """`1 - (2 sum pg + 1) / (sum p + sum g + 1)` per image (n,); p = softmax of the foreground channel."""
    p = outputs.softmax(dim=1)[:, 1]  # (n, H, W)
    g = masks.to(p.dtype)
    overlap, total = (p * g).sum(dim=(1, 2)), (p + g).sum(dim=(1, 2))
    return 1 - (2 * overlap + 1) / (total + 1)
