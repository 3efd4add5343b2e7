"""Relevance maps: the patches on which a ViT's decision for a class rests.

Three methods, which go back from the classifier's tokens to the patches, block by block (∇A = ∂y/∂A for the logit y):

- "rollout" (Abnar and Zuidema, 2020): R ← ½(I + mean_h A)·R, the same for all classes, and how TL-Align's
  labels flow
- "gradient" (Chefer et al., ICCV 2021): R ← (I + mean_h (∇A ⊙ A)⁺)·R
- "lrp" (Chefer et al., CVPR 2021): R ← (I + mean_h (∇A ⊙ R_A)⁺)·R, where R_A is the attention's relevance
  (`propagation`). The Token Labeling paper's Figures 6 and 7 are made with it.

Shapes: B batch, A heads, N tokens, C classes, H×W pixels, h×w the grid of patch tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
import torch.nn.functional as F
from timm.layers import Attention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call

from labelflow.adapters.registry import MODELS, known_model
from labelflow.align import evaluating
from labelflow.analysis.propagation import Propagation, Watching
from labelflow.models.merging import require_all_tokens
from labelflow.tokens import has_token_head


def relevance(model: nn.Module, images: Tensor, classes: Tensor | None = None, method: str = "lrp") -> Tensor:
    """How relevant each patch is to the logit of a class: images (B, 3, H, W), classes (B,) -> (B, h, w).

    The images are normalised as the model wants them. classes: those to explain; None: the likeliest. method: "lrp",
    "gradient" or "rollout". The map is what reaches the class token from the patches, the mean over both tokens of a
    distilled DeiT, or over all tokens that a model averages. Of an LV-ViT, which adds the scores of its best token, the
    logits of the class token are explained: a maximum only selects. The model is left as it was.

    >>> import timm
    >>> model = timm.create_model("deit_tiny_patch16_224", num_classes=10)
    >>> relevance(model, torch.rand(2, 3, 224, 224), torch.tensor([3, 7])).shape
    torch.Size([2, 14, 14])
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; there are {', '.join(METHODS)}")
    if images.ndim != 4 or not len(images):
        raise ValueError(f"images must have the shape (B, 3, H, W), not {tuple(images.shape)}")
    vit = _checked(model)
    adapter = MODELS[known_model(vit)]
    adapter.head_tokens(vit)  # refuses a pooling that cannot be read
    height, width = images.shape[2:]
    with evaluating(vit), _differentiable(images.device.type):
        try:
            steps = METHODS[method](vit, images, _classes(vit, images, classes))
        except AssertionError as error:  # timm's way to refuse an image size
            raise ValueError(f"{_name(vit)} refused images of {height}×{width} pixels: {error}") from error
        rows = adapter.heads(vit, torch.eye(steps[0].shape[1]).to(steps[0]).expand_as(steps[0]))  # (B, classifiers, N)
        for step in reversed(steps):
            rows = rows @ step
    return rows.mean(1)[:, vit.num_prefix_tokens :].unflatten(1, vit.patch_embed.dynamic_feat_size((height, width)))


def upsampled(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (B, h, w) to look at: bilinear to (B, H, W), each from 0 at its least to 1 at its most; a flat one is 0.

    >>> upsampled(torch.tensor([[[1.0, 3.0]]]), (1, 4))
    tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    if maps.ndim != 3:
        raise ValueError(f"maps must have the shape (B, h, w), not {tuple(maps.shape)}")
    maps = maps - maps.amin((1, 2), keepdim=True)  # so that a flat map is exactly 0, however values are rounded
    large = F.interpolate(maps.unsqueeze(1), size, mode="bilinear", align_corners=False).squeeze(1)
    large = large - large.amin((1, 2), keepdim=True)
    most = large.amax((1, 2), keepdim=True)
    return large / most.where(most > 0, torch.ones_like(most))


def _rollout(model: VisionTransformer, images: Tensor, classes: Tensor) -> list[Tensor]:
    """Of each block, what goes from token to token: (B, N, N)"""
    _, watching = _run(model, images, Watching())
    return [_with_itself(attention.detach().mean(1)) / 2 for attention in watching.attention]


def _gradient(model: VisionTransformer, images: Tensor, classes: Tensor) -> list[Tensor]:
    gradients, watching = _returned(model, images, classes, Watching())
    return _raising(gradients, [attention.detach() for attention in watching.attention])


def _lrp(model: VisionTransformer, images: Tensor, classes: Tensor) -> list[Tensor]:
    """Rules divide by sums in which terms cancel, so that single precision is not enough, where there is more."""
    gradients, _ = _returned(model, images, classes, Watching())
    precise = images if images.device.type == "mps" else images.double()
    relevances, _ = _returned(model, precise, classes, Propagation())
    return _raising(gradients, [relevance.to(images.dtype) for relevance in relevances])


METHODS: dict[str, Callable[[VisionTransformer, Tensor, Tensor], list[Tensor]]] = {
    "lrp": _lrp,
    "gradient": _gradient,
    "rollout": _rollout,
}


def _raising(gradients: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    """I + mean_h (∇A ⊙ W)⁺: only what raises the logit counts."""
    pairs = zip(gradients, weights, strict=True)
    return [_with_itself((gradient * weight).clamp(min=0).mean(1)) for gradient, weight in pairs]


def _with_itself(mixing: Tensor) -> Tensor:
    """The residual connection: I + M, (B, N, N)"""
    return mixing + torch.eye(mixing.shape[1]).to(mixing)


def _returned(
    model: VisionTransformer, images: Tensor, classes: Tensor, watching: Watching
) -> tuple[list[Tensor], Watching]:
    """What comes back from the logits of the classes to the attention of each block, (B, A, N, N)"""
    logits, watching = _run(model, images, watching)
    chosen = logits.gather(1, classes.unsqueeze(1)).sum()
    return list(torch.autograd.grad(chosen, watching.attention)), watching


def _run(model: VisionTransformer, images: Tensor, watching: Watching) -> tuple[Tensor, Watching]:
    """The logits (B, C), watched, in the images' precision. Gradients go to what depends on these, not to weights."""
    classifier = _Classifier(model)
    values = chain(classifier.named_parameters(), classifier.named_buffers())
    weights = {name: value.detach().to(images.dtype) for name, value in values if value.is_floating_point()}
    with watching:
        logits = functional_call(classifier, weights, images.detach().clone().requires_grad_())
    return logits, watching


@contextmanager
def _differentiable(device: str) -> Iterator[None]:
    """Gradients in full precision, whatever the caller has set."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device, enabled=False):
        yield


class _Classifier(nn.Module):
    """The logits of a model, of the class token alone where patch tokens have theirs, too."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.dense_logits(images)[0] if has_token_head(self.model) else self.model(images)


def _checked(model: nn.Module) -> VisionTransformer:
    if not isinstance(model, VisionTransformer) or model.attn_pool is not None:
        pooled = " with attention pooling" if isinstance(model, VisionTransformer) else ""
        raise ValueError(f"relevance maps are made of a ViT, a DeiT or an LV-ViT, not of {_name(model)}{pooled}")
    require_all_tokens(model, "relevance maps need")
    unknown = {_name(block) for block in model.blocks if type(getattr(block, "attn", None)) is not Attention}
    if unknown:
        raise ValueError(
            f"relevance maps are made of a ViT, a DeiT or an LV-ViT whose blocks have one softmax attention each, "
            f"timm's Attention, not of one with {', '.join(sorted(unknown))}"
        )
    if not model.num_classes:
        raise ValueError("this model has no classifier: give it one with reset_classifier(num_classes)")
    if model.grad_checkpointing:
        raise ValueError("attention is not kept with checkpointing: call model.set_grad_checkpointing(False) first")
    return model


def _name(module: nn.Module) -> str:
    return type(module).__name__


@torch.no_grad()
def _classes(model: VisionTransformer, images: Tensor, classes: Tensor | None) -> Tensor:
    """(B,), checked; the likeliest if none are given."""
    if classes is None:
        return model(images).argmax(1)
    if classes.shape != images.shape[:1] or classes.is_floating_point():
        raise ValueError(f"classes must be {len(images)} whole numbers, one for each image, not {classes!r}")
    if classes.min() < 0 or classes.max() >= model.num_classes:
        raise ValueError(f"classes must lie in 0 to {model.num_classes - 1}, not in {classes.min()} to {classes.max()}")
    return classes.to(images.device, torch.long, copy=True)
