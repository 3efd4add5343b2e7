"""TL-Align straight from the equations: unfused attention, N×N matrices, a label of C classes for every token.

What `Aligned` is measured against. Written for reading, not for speed.
"""

import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock, window_partition, window_reverse
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from labelflow import Mix
from labelflow.models.pvt import PyramidVisionTransformer


class Naive(nn.Module):
    """A model whose attention is unfused, with dense labels that are moved by hooks: (images, mix, y) -> logits, y."""

    KNOWN = (VisionTransformer, SwinTransformer, PyramidVisionTransformer)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.labels = torch.empty(0)  # (B, N, C)
        self.ratio = torch.empty(0)  # (B, 1, C): the image's label
        self.pyramid = not hasattr(model, "blocks")
        for name, module in model.named_modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False
            if name.endswith(".attn_drop"):
                module.register_forward_hook(self._keep)
            if hasattr(module, "norm1") and hasattr(module, "attn"):
                module.register_forward_hook(self._move)

    def forward(self, images: Tensor, mix: Mix, y: Tensor) -> tuple[Tensor, Tensor]:
        patch = 4 if self.pyramid else 16
        share = F.avg_pool2d(mix.share, patch).flatten(1).unsqueeze(2)  # (B, N, 1)
        self.labels = share * y.unsqueeze(1) + (1 - share) * y[mix.partner].unsqueeze(1)
        self.ratio = mix.blend(y).unsqueeze(1)
        logits = self.model(images)
        has_class_token = getattr(self.model, "cls_token", None) is not None
        return logits, self.labels[:, 0] if has_class_token else self.labels.mean(1)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.weights = inputs[0].detach()

    @torch.no_grad()
    def _move(self, block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        tokens = inputs[0].shape[1] if inputs[0].ndim == 3 else inputs[0].shape[1] * inputs[0].shape[2]
        side = round(tokens**0.5)
        while self.labels.shape[1] > tokens:  # patch merging: the mean of 2×2
            half = round(self.labels.shape[1] ** 0.5) // 2
            self.labels = self.labels.unflatten(1, (half, 2, half, 2)).mean((2, 4)).flatten(1, 2)
        if self.labels.shape[1] == tokens - 1:
            self.labels = torch.cat([self.ratio, self.labels], 1)
        weights = self.weights.mean(1)  # (B, N, M)
        if isinstance(block, SwinTransformerBlock):
            mixed = _swin(block, weights, self.labels.unflatten(1, (side, side))).flatten(1, 2)
        elif weights.shape[2] < self.labels.shape[1]:  # PVT: pooled keys
            reduced = round(weights.shape[2] ** 0.5)
            pool = side // reduced
            keys = self.labels.unflatten(1, (reduced, pool, reduced, pool)).mean((2, 4)).flatten(1, 2)
            mixed = weights @ keys
        else:
            mixed = weights @ self.labels
        self.labels = (self.labels + mixed) / 2


def _swin(block: SwinTransformerBlock, weights: Tensor, labels: Tensor) -> Tensor:
    side, window, (shift, _) = labels.shape[1], block.window_size, block.shift_size
    labels = torch.roll(labels, (-shift, -shift), (1, 2))
    windows = weights @ window_partition(labels, window).flatten(1, 2)
    labels = window_reverse(windows.unflatten(1, window), window, side, side)
    return torch.roll(labels, (shift, shift), (1, 2))
