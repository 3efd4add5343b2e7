"""timm's `Mixup` on labelflow's mixers, for loops that have timm's."""

from typing import Any

from torch import Generator, Tensor, nn

from labelflow.align import Aligned
from labelflow.loss import soft_labels
from labelflow.mix import Mix
from labelflow.mixers.base import Mixer, Per
from labelflow.mixers.choose import Choose
from labelflow.mixers.cutmix import CutMix
from labelflow.mixers.mixup import MixUp, NoMix

MODES: dict[str, Per] = {"batch": "batch", "pair": "pair", "elem": "sample"}  # timm's words, and ours


class Mixup:
    """timm's `Mixup`, argument by argument, and `align`, which is TL-Align: `MixUp` and `CutMix`, one or the other.

    `mixup_fn(images, classes)` returns mixed images and targets by λ, as timm's does. What came in stays as it is, and
    the batch may be odd: its middle image then stays unmixed.

    mixup_alpha, cutmix_alpha: of Beta(α, α); 0 turns that one off.
    cutmix_minmax: `CutMix`'s minmax; it turns CutMix on.
    prob: of mixing at all.
    switch_prob: of CutMix, where both are on.
    mode: one draw for the "batch", for each "pair" of partners, or for each image, "elem".
    correct_lam: False goes by λ as it was drawn, not by the area of the clipped box. To `align` it makes no difference.
    label_smoothing: towards 1/num_classes, or towards 0.5 where labels are multi_label, (B, C).

    `mixup_fn.mixup_enabled = False` turns it off, as timm's training script does for the last epochs.

    >>> import torch
    >>> mixup_fn = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
    >>> images, target = mixup_fn(torch.rand(4, 3, 64, 64), torch.tensor([3, 1, 4, 1]))
    >>> images.shape, target.shape
    (torch.Size([4, 3, 64, 64]), torch.Size([4, 10]))
    """

    def __init__(
        self,
        mixup_alpha: float = 1.0,
        cutmix_alpha: float = 0.0,
        cutmix_minmax: tuple[float, float] | None = None,
        prob: float = 1.0,
        switch_prob: float = 0.5,
        mode: str = "batch",
        correct_lam: bool = True,
        label_smoothing: float = 0.1,
        num_classes: int = 1000,
        multi_label: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be 'batch', 'pair' or 'elem', not {mode!r}")
        for name, part in {"prob": prob, "switch_prob": switch_prob, "label_smoothing": label_smoothing}.items():
            if not 0 <= part <= 1:
                raise ValueError(f"{name} must lie in [0, 1], not {part}")
        if cutmix_minmax is not None:
            cutmix_alpha = 1.0
        if not (mixup_alpha > 0 or cutmix_alpha > 0):
            raise ValueError("nothing to mix with: mixup_alpha or cutmix_alpha must be above 0, or cutmix_minmax given")
        per, mixers = MODES[mode], list[Mixer]()
        if mixup_alpha > 0:
            mixers.append(MixUp(mixup_alpha, per=per))
        if cutmix_alpha > 0:
            mixers.append(CutMix(cutmix_alpha, per=per, minmax=cutmix_minmax, correct_lam=correct_lam))
        parts = [1 - switch_prob, switch_prob] if len(mixers) == 2 else [1]
        self.mixer = Choose([*mixers, NoMix()], [*(prob * part for part in parts), 1 - prob], per=per)
        self.mixup_enabled = True
        self.label_smoothing = label_smoothing
        self.num_classes = num_classes
        self.multi_label = multi_label

    def __call__(self, images: Tensor, labels: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Mixed images (B, C, H, W), and targets (B, num_classes) by λ."""
        mix = self.mix(images, generator)
        return mix.apply(images), mix.blend(self._soft(labels))

    def align(
        self, aligned: nn.Module, images: Tensor, labels: Tensor, generator: Generator | None = None
    ) -> tuple[Any, Tensor]:
        """TL-Align: the logits of the mixed images, and targets (B, num_classes) by what reached the classifier.

        aligned: `Aligned(model)`, or what it is wrapped in.
        """
        if not any(isinstance(module, Aligned) for module in aligned.modules()):
            raise ValueError(f"align takes labelflow.Aligned(model), not the {type(aligned).__name__} itself")
        mix = self.mix(images, generator)
        logits, share = aligned(mix.apply(images), mix.share)
        classes = (logits[0] if isinstance(logits, tuple) else logits).shape[-1]
        if classes != self.num_classes:
            raise ValueError(f"the model has {classes} classes, and this Mixup {self.num_classes}; set num_classes")
        return logits, mix.blend(self._soft(labels), share)

    def mix(self, images: Tensor, generator: Generator | None = None) -> Mix:
        """How a batch is mixed: this is a mixer as labelflow's others are."""
        return self.mixer(images, generator) if self.mixup_enabled else NoMix()(images, generator)

    def _soft(self, labels: Tensor) -> Tensor:
        if self.multi_label:
            return soft_labels(labels, self.num_classes) * (1 - self.label_smoothing) + self.label_smoothing / 2
        return soft_labels(labels, self.num_classes, self.label_smoothing)
