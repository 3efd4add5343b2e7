"""A model and its labels, side by side.

`Aligned` hooks the modules that a model's tokens pass through. While `Aligned.forward` runs, and only then, each hook
moves the labels the way its module has just moved the tokens. The model itself is left alone: its weights, its
`state_dict`, its logits and its cost at inference are its own.

Shapes: B batch, C channels, H×W pixels, N tokens, K sources.
"""

import weakref
from collections.abc import Collection, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from labelflow.adapters.registry import MODELS, MODULES, Seen, known_model, known_module
from labelflow.flow import Labels
from labelflow.mix import Mix

Value = TypeVar("Value")


class Flow(NamedTuple):
    """The labels that arrive: (own, partner) for K = 2 sources."""

    heads: Tensor  # (B, heads, K), one row for each classifier; a distilled DeiT has two
    tokens: Tensor | None  # (B, h·w, K), one row for each patch token, where they were asked for


class Output(NamedTuple):
    """What a target sees of one forward pass."""

    logits: Any  # as the model returns them
    flow: Flow | None  # where it was needed


class Layer(NamedTuple):
    """The labels after one block."""

    name: str  # of the block in the model, such as "blocks.3"
    share: Tensor  # (B, N): own share of each token; those without a place in the image come first
    grid: tuple[int, int]

    @property
    def map(self) -> Tensor:
        """(B, h, w)"""
        return self.share[:, self.share.shape[1] - self.grid[0] * self.grid[1] :].unflatten(1, self.grid)


class Aligned(nn.Module):
    """A model whose labels follow its tokens: `aligned(images, share) -> (logits, share)`.

    share (B, 1, H, W) says how much of each pixel is one's own; the share that comes back, (B,), is what reached the
    classifier, or the mean over classifiers where a model has two. Attach before compiling, sharding or wrapping.

    layers: the blocks that move labels, counted from 0 (negative: from the end); the others are the identity.
    residual: False turns Y ← Norm(Y + A·Y) into Y ← A·Y. Both are for ablations (TL-Align, Table 8).

    >>> import timm, labelflow as lf
    >>> model = timm.create_model("deit_tiny_patch16_224", num_classes=10)
    >>> aligned, cutmix = lf.Aligned(model), lf.CutMix(alpha=1.0)
    >>> images, classes = torch.rand(4, 3, 224, 224), torch.tensor([3, 1, 4, 1])
    >>> mix = cutmix(images)
    >>> logits, share = aligned(mix.apply(images), mix.share)
    >>> target = mix.blend(lf.soft_labels(classes, 10, smoothing=0.1), share)
    >>> loss = nn.functional.cross_entropy(logits, target)
    """

    def __init__(self, model: nn.Module, layers: Iterable[int] | None = None, residual: bool = True) -> None:
        super().__init__()
        self.model = model
        self.follower = Follower(self, model, layers, residual)

    def __call__(self, images: Tensor, share: Tensor) -> tuple[Any, Tensor]:
        return super().__call__(images, _Uncast(share))

    def forward(self, images: Tensor, share: "Tensor | _Uncast[Tensor]") -> tuple[Any, Tensor]:
        logits, flow = self.follower.run(self.model, images, _unwrap(share))
        return logits, flow.heads[..., 0].mean(1)

    @torch.no_grad()
    def trace(self, images: Tensor, share: Tensor) -> list[Layer]:
        """The own share of every token after every block, for looking at."""
        trace: list[Layer] = []
        self.follower.run(self.model, images, share, tokens=True, trace=trace)
        return trace


class Student(nn.Module):
    """A model as a target sees it: `student(images, mix) -> Output`. Only what `needs` names is computed.

    "flow": the labels that reach each classifier; "tokens": those of the patch tokens, too. Without a mix the model
    runs as it is: `student(images)` is what is evaluated, through whatever the student is wrapped in.

    layers, residual: see `Aligned`. label_prefix: False gives tokens without a place in the image no label (TransMix).
    """

    NEEDS = frozenset({"flow", "tokens"})

    def __init__(
        self,
        model: nn.Module,
        needs: Collection[str] = (),
        layers: Iterable[int] | None = None,
        residual: bool = True,
        label_prefix: bool = True,
    ) -> None:
        super().__init__()
        unknown = set(needs) - self.NEEDS
        if unknown:
            raise ValueError(f"a student cannot give {sorted(unknown)}; it knows {sorted(self.NEEDS)}")
        self.model = model
        self.needs = frozenset(needs)
        self.follower = Follower(self, model, layers, residual, label_prefix) if needs else None

    def __call__(self, images: Tensor, mix: Mix | None = None) -> Output:
        return super().__call__(images, _Uncast(mix))

    def forward(self, images: Tensor, mix: "Mix | _Uncast[Mix | None] | None" = None) -> Output:
        mix = _unwrap(mix)
        if mix is not None and not isinstance(mix, Mix):
            raise ValueError(f"a student takes a Mix, what a mixer returns, not a {type(mix).__name__}")
        if self.follower is None or mix is None:
            return Output(self.model(images), None)
        return Output(*self.follower.run(self.model, images, mix.share, tokens="tokens" in self.needs))


class _Uncast(Generic[Value]):
    """Keeps what it holds in float32: FSDP's mixed precision rounds every tensor and dataclass on its way in."""

    def __init__(self, value: Value) -> None:
        self.value = value


def _unwrap(held: Value | _Uncast[Value]) -> Value:
    return held.value if isinstance(held, _Uncast) else held


class Follower:
    """Hooks on a model that move labels along with its tokens while `run` runs, and do nothing otherwise.

    The hooks go with `owner`. Hooks and state are plain data, so that copies and pickles have their own, wired alike.
    """

    def __init__(
        self,
        owner: object,
        model: nn.Module,
        layers: Iterable[int] | None,
        residual: bool,
        label_prefix: bool = True,
    ) -> None:
        self.model_kind = known_model(model)  # kinds, not adapters: functions do not always pickle
        self.residual = residual
        self.label_prefix = label_prefix
        self.labels: Labels | None = None  # None: idle
        self.image_label: Tensor | None = None  # (B, K): the label of the whole image
        self.taps: dict[str, Tensor] = {}
        self.trace: list[Layer] | None = None
        self.head_tokens = 0  # how many leading tokens are enough in the end; 0: all are needed
        self.fired: list[str] = []

        MODELS[self.model_kind].head_tokens(model)  # refuses what cannot be followed
        names = {module: name for name, module in model.named_modules()}
        path = MODELS[self.model_kind].path(model)
        self.steps = [names[module] for module in path]  # what has to fire, in order
        kinds = {module: known_module(module) for module in path}
        blocks = [module for module in path if MODULES[kinds[module]].layer]
        left_out = set(blocks) - set(_choose(blocks, layers))
        handles: list[RemovableHandle] = []
        for module, kind in kinds.items():
            taps = {} if module in left_out else MODULES[kind].taps(module)
            for tap, (watched, side) in taps.items():
                handles.append(watched.register_forward_hook(_Watch(self, tap, side), prepend=True))
            move = _Move(self, kind, names[module], last=module is blocks[-1], identity=module in left_out)
            # First of all hooks: FSDP's own, which shard the weights again, have to come after it.
            handles.append(module.register_forward_hook(move, prepend=True))
        weakref.finalize(owner, _remove, handles)

    def run(
        self, model: nn.Module, images: Tensor, share: Tensor, tokens: bool = False, trace: list[Layer] | None = None
    ) -> tuple[Any, Flow]:
        """The model's own output, and the labels that arrive with it."""
        _check(images, share)
        adapter = MODELS[self.model_kind]
        head_tokens = adapter.head_tokens(model)  # refuses a pooling that cannot be followed, before anything is set
        self.trace, self.head_tokens, self.fired = trace, 0 if tokens else head_tokens, []
        self.labels = Labels.of_pixels(share.detach())
        self.image_label = self.labels.values.mean(1)
        try:
            logits = model(images)
            arrived = self.labels
        except AssertionError as error:
            if self.fired:
                raise
            size = f"{images.shape[2]}×{images.shape[3]}"  # before any token: timm's way to refuse an image size
            raise ValueError(f"{type(model).__name__} refused images of {size} pixels: {error}") from error
        finally:
            self.labels, self.image_label, self.trace, self.taps = None, None, None, {}
        if self.fired != self.steps:
            missing = [step for step in self.steps if step not in self.fired]
            raise RuntimeError(
                f"labels followed {len(self.fired)} of {len(self.steps)} modules: {type(model).__name__} did not run "
                f"{', '.join(missing) or 'each of them once, in order'}"
            )
        heads = adapter.heads(model, arrived.values)
        return logits, Flow(heads, arrived.map.flatten(1, 2) if tokens else None)

    def move(self, module: nn.Module, tokens: Tensor, hook: "_Move") -> None:
        assert self.labels is not None
        adapter = MODULES[hook.kind]
        with torch.no_grad(), torch.autocast(self.labels.values.device.type, enabled=False):
            if adapter.layer:
                self._add_prefix(tokens)
            if not hook.identity:
                rows = slice(self.head_tokens if hook.last and self.head_tokens else None)
                moved = adapter.move(module, Seen(self.taps, rows, self.residual), self.labels)
                if not isinstance(moved, Labels):
                    raise RuntimeError(f"the adapter of {hook.name} returned a {type(moved).__name__}, not Labels")
                self.labels = moved
        self.taps = {}
        self.fired.append(hook.name)
        if self.trace is not None and adapter.layer:
            self.trace.append(Layer(hook.name, self.labels.values[..., 0], self.labels.grid))

    def _add_prefix(self, tokens: Tensor) -> None:
        """Tokens (B, N, D) without a place in the image (class token, registers) start with its ratio, or no label."""
        assert self.labels is not None
        assert self.image_label is not None
        missing = tokens.shape[1] - self.labels.values.shape[1] if tokens.ndim == 3 else 0
        if missing < 0:
            raise RuntimeError(
                f"there are labels for {self.labels.values.shape[1]} tokens, but {tokens.shape[1]} tokens"
            )
        if missing:
            label = self.image_label if self.label_prefix else torch.zeros_like(self.image_label)
            joined = label.unsqueeze(1).expand(-1, missing, -1)
            self.labels = Labels(torch.cat([joined, self.labels.values], 1), self.labels.grid)


class _Watch:
    """A hook that keeps what an adapter wants to see."""

    def __init__(self, follower: Follower, tap: str, side: str) -> None:
        self.follower, self.tap, self.side = follower, tap, side

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self.follower.labels is not None:
            self.follower.taps[self.tap] = (output if self.side == "output" else inputs[0]).detach()


class _Move:
    """A hook that moves the labels as its module has moved the tokens."""

    def __init__(self, follower: Follower, kind: type[nn.Module], name: str, last: bool, identity: bool) -> None:
        self.follower, self.kind, self.name, self.last, self.identity = follower, kind, name, last, identity

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self.follower.labels is not None:
            self.follower.move(module, inputs[0], self)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _choose(blocks: list[nn.Module], layers: Iterable[int] | None) -> list[nn.Module]:
    if layers is None:
        return blocks
    layers = list(layers)
    wrong = [layer for layer in layers if not -len(blocks) <= layer < len(blocks)]
    if wrong:
        raise ValueError(
            f"layers are counted from 0, or from the end with -1: this model has 0 to {len(blocks) - 1}, not {wrong}"
        )
    return [blocks[layer] for layer in layers]


def _check(images: Tensor, share: Tensor) -> None:
    if images.ndim != 4 or not len(images):
        raise ValueError(f"images must have the shape (B, C, H, W), not {tuple(images.shape)}")
    if not isinstance(share, Tensor):
        raise ValueError(f"share must be a tensor, such as mix.share, not a {type(share).__name__}")
    expected = (images.shape[0], 1, images.shape[2], images.shape[3])
    if share.shape != expected:
        raise ValueError(f"share must have the shape (B, 1, H, W) = {expected}, not {tuple(share.shape)}")
    # Elsewhere than on a CPU, looking at the values would make the host wait for the device at every step.
    if share.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = share.aminmax()
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"share must lie in [0, 1], the part of one's own image; it reaches from {low:g} to {high:g}"
            )
