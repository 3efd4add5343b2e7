"""RecursiveMix (Yang et al., NeurIPS 2022): the batch before, as it was mixed, made smaller, in a box of this one."""

import math

import torch
from torch import Generator, Tensor

from labelflow.mix import Mix
from labelflow.mixers.base import Per, check_images, check_per, draw_uniform, draws, spread
from labelflow.mixers.cutmix import boxes_around, inside, sides
from labelflow.mixers.mixup import NoMix


class RecursiveMix:
    """Paste the image at the same place of the batch before, mixed as it was, into a box of r of the area, r ~ U(0, α),
    around a uniform centre, clipped at the edges. So an image holds smaller and smaller ones of earlier batches, and
    its label a part of all their labels. The mix's λ is the real area after clipping. Its target is `recursive_mix`.

    In a loop of one's own, `pool` values for both batches, this one first:

    >>> recursive, generator = RecursiveMix(), torch.Generator().manual_seed(0)
    >>> earlier = earlier_labels = None
    >>> for images, labels in [(torch.rand(4, 3, 32, 32), torch.eye(4)), (torch.rand(4, 3, 32, 32), torch.eye(4))]:
    ...     mix = recursive(images, generator, earlier=earlier)
    ...     if earlier is not None:
    ...         images, labels = torch.cat([images, earlier]), torch.cat([labels, earlier_labels])
    ...     earlier, earlier_labels = mix.apply(images), mix.blend(labels)
    >>> earlier.shape, earlier_labels.shape
    (torch.Size([4, 3, 32, 32]), torch.Size([4, 4]))

    alpha: the largest part of the area, before clipping.
    per: one box for the "batch", as in the authors' runs, or for each "sample".
    """

    remembers = True

    def __init__(self, alpha: float = 0.5, *, per: Per = "batch") -> None:
        if not (0 < alpha <= 1 and math.isfinite(alpha)):
            raise ValueError(f"alpha, the largest part of the area, must lie in (0, 1], not {alpha}")
        if per == "pair":
            raise ValueError("per must be 'batch' or 'sample': partners are in another batch, so there are no pairs")
        self.alpha, self.per = alpha, check_per(per)

    def __call__(self, images: Tensor, generator: Generator | None = None, *, earlier: Tensor | None = None) -> Mix:
        """earlier: the mixed images of the batch before, (B, C, H, W); None: there is none, and nothing is mixed."""
        batch, height, width = check_images(images, generator)
        if earlier is None:
            return NoMix()(images)
        if earlier.shape != images.shape:
            raise ValueError(
                f"the earlier batch must have the shape of this one, {tuple(images.shape)}, not {tuple(earlier.shape)}"
            )
        count = draws(self.per, batch)
        r, y, x = draw_uniform((3, count), generator)
        shape = r.new_tensor((height, width))
        centre = torch.floor(torch.stack([y, x], 1) * shape).long()
        box = boxes_around(centre, sides(1 - self.alpha * r, (height, width)))
        box = box.clamp(min=0).minimum(shape.long().repeat(2)).to(images.device, non_blocking=True)
        partner = torch.arange(batch, 2 * batch, device=images.device)
        share = 1 - inside(box, height, width)
        return Mix(partner, spread(share, batch), box=spread(box, batch), pool=2 * batch)
