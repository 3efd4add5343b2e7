"""One value that says how the images of a batch were mixed.

Shapes: B batch, C channels or classes, H×W pixels, h×w a token grid.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from labelflow.precision import product
from labelflow.tokens import token_grid


@dataclass(frozen=True, eq=False)
class Mix:
    """Who is mixed with whom, and how much of each pixel is one's own.

    λ and share mean the part of one's *own* image everywhere. (The paper's λ is the pasted image's.)

    >>> images = torch.rand(4, 3, 32, 32)
    >>> mix = Mix(partner=torch.tensor([3, 2, 1, 0]), share=torch.full((4, 1, 32, 32), 0.75))
    >>> mix.lam
    tensor([0.7500, 0.7500, 0.7500, 0.7500])
    >>> mix.apply(images).shape
    torch.Size([4, 3, 32, 32])
    """

    partner: Tensor  # (B,) long: the index of the image that each one is mixed with
    share: Tensor  # (B, 1, H, W) float32 in [0, 1]: how much of each pixel is one's own
    at: Literal["image", "tokens"] = "image"  # where it happens: to pixels, or to tokens after the patch embedding
    sources: Tensor | None = None  # (B, 2, h, w) long: for mixers that move cells of an image, the cell that each cell
    # shows, of the own image and of the partner's, counted row by row. None: everything stays at its place
    drawn: Tensor | None = None  # (B,) λ as it was drawn, if labels that are not aligned go by it. None: by the area
    box: Tensor | None = None  # (B, 4) long: top, left, bottom, right of the pixels into which the whole partner is
    # resized, inside the image. None: it keeps its size
    pool: int = 0  # how many images, the B mixed ones first, partners are taken from, if more than these: those of an
    # earlier batch, say. All that belongs to images then comes for the whole pool

    def __post_init__(self) -> None:
        if self.share.ndim != 4 or self.share.shape[1] != 1:
            raise ValueError(f"share must have the shape (B, 1, H, W), not {tuple(self.share.shape)}")
        if self.partner.dtype != torch.long:
            raise ValueError(f"partner must hold indices, torch.long, not {self.partner.dtype}")
        if self.partner.shape != self.share.shape[:1]:
            raise ValueError(
                f"partner must have the shape (B,) = ({self.share.shape[0]},) to fit share, "
                f"not {tuple(self.partner.shape)}"
            )
        if self.sources is not None and (self.sources.ndim != 4 or self.sources.shape[:2] != (len(self.partner), 2)):
            raise ValueError(f"sources must have the shape (B, 2, h, w), not {tuple(self.sources.shape)}")
        if self.drawn is not None and self.drawn.shape != self.partner.shape:
            raise ValueError(f"drawn must have the shape (B,) = ({len(self.partner)},), not {tuple(self.drawn.shape)}")
        if self.box is not None and self.box.shape != (len(self.partner), 4):
            raise ValueError(f"box must have the shape (B, 4) = ({len(self.partner)}, 4), not {tuple(self.box.shape)}")
        if self.pool and self.pool < len(self.partner):
            raise ValueError(f"pool must hold at least the {len(self.partner)} images that are mixed, not {self.pool}")
        if self.sources is not None and self.box is not None:
            raise ValueError("a mix either moves cells (sources) or resizes the partner (box), not both")
        if self.at == "tokens" and not (self.sources is None and self.box is None and not self.pool):
            raise ValueError("sources, box and pool are for pixels, at='image'; a mix of tokens has none of them")
        _, _, height, width = self.share.shape
        if self.share.stride() != (height * width, height * width, width, 1):
            # One layout, whatever a mixer expands: compiled models are compiled once.
            object.__setattr__(self, "share", self.share.clone(memory_format=torch.contiguous_format))

    def __repr__(self) -> str:
        batch, _, height, width = self.share.shape
        return f"Mix({batch} images of {height}×{width} pixels, partner={self.partner.tolist()}, at={self.at!r})"

    @property
    def lam(self) -> Tensor:
        """How much of a label is one's own if it is not aligned, (B,): the real area share, unless λ was `drawn`."""
        return self.share.mean((1, 2, 3)) if self.drawn is None else self.drawn

    def apply(self, images: Tensor) -> Tensor:
        """Mix the images, (B, C, H, W): Eq. 1. The input is left as it is, and comes back where tokens are mixed."""
        if len(images) != self._images or images.shape[2:] != self.share.shape[2:]:
            raise ValueError(
                f"this mix was made for images of shape (B, C, H, W) with B, H, W = "
                f"{self._images}, {self.share.shape[2]}, {self.share.shape[3]}, not {tuple(images.shape)}"
            )
        if not images.is_floating_point():
            raise ValueError(f"images must be floating point to be mixed, not {images.dtype}; normalise them first")
        if self.at == "tokens":
            return images
        return torch.lerp(self.pasted(images), self.own(images), self.share.to(images.dtype))

    def pair(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """What belongs to each image, and to its partner: (B, ...) each, of values for all of them."""
        if len(values) != self._images:
            raise ValueError(f"there must be one value for each of the {self._images} images, not {len(values)}")
        return values[: len(self.partner)], values[self.partner]

    def own(self, maps: Tensor) -> Tensor:
        """What belongs to the pixels of the own image, (B, C, H, W), where they lie in the mixed one."""
        own, _ = self.pair(maps)
        return own if self.sources is None else _move_cells(own, self.sources[:, 0])

    def pasted(self, maps: Tensor) -> Tensor:
        """What belongs to the pixels of the partner's image, (B, C, H, W), where they lie in the mixed one."""
        _, pasted = self.pair(maps)
        if self.sources is not None:
            return _move_cells(pasted, self.sources[:, 1])
        return pasted if self.box is None else _resize_into(pasted, self.box)

    def apply_to_tokens(self, tokens: Tensor) -> Tensor:
        """Mix tokens (B, h·w, D) that lie on a grid, row by row: Eq. 5 of Token Labeling."""
        grid = token_grid(tokens.shape[1], self.share.shape[2], self.share.shape[3])
        share = self.tokens(grid)
        whole = not (self.share.shape[2] % grid[0] or self.share.shape[3] % grid[1])  # tokens without padding
        if whole and share.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere it would wait for it
            pixels = F.interpolate(share.unsqueeze(1), self.share.shape[2:], mode="nearest")
            if not torch.allclose(pixels, self.share, atol=1e-6):
                side = round(self.share.shape[2] / grid[0])
                raise ValueError(f"this mix cuts through tokens, which are {side} pixels wide: mixtoken(patch={side})")
        share = share.flatten(1).unsqueeze(-1).to(tokens.dtype)  # (B, h·w, 1)
        return torch.lerp(tokens[self.partner], tokens, share)

    def blend(self, values: Tensor, share: Tensor | None = None) -> Tensor:
        """Mix what belongs to the images, such as soft or multi-label targets, (B, ...).

        `share` (B,) is how much of the own value to keep: what `Aligned` returns. Left out it is λ, plain CutMix's.
        """
        share = self.lam if share is None else share
        if len(values) != self._images or share.shape != self.partner.shape:
            raise ValueError(
                f"blending needs one share (B,) and one value (B, ...) for each of the {self._images} images, "
                f"not share {tuple(share.shape)} and values {tuple(values.shape)}"
            )
        if not values.is_floating_point():
            raise ValueError(
                f"values must be floating point to be blended, not {values.dtype}; turn class ids or multi-hot "
                "targets into soft ones first, with labelflow.soft_labels(classes, num_classes)"
            )
        own, pasted = self.pair(values)
        return torch.lerp(pasted, own, share.to(values.dtype).reshape(-1, *[1] * (values.ndim - 1)))

    def move(self, values: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """What belongs to tokens on a grid, (B, h·w, V), row by row, where they lie in the mixed image: of the own
        image and of the partner's. A token in which several of the partner's were made smaller has their mean, by area.
        Where the grid does not divide into cells that were moved, it is the token at each place's middle."""
        own, pasted = self.pair(values)
        if self.sources is not None:
            places = (place.unsqueeze(-1).expand_as(own) for place in self._places(self.sources, grid))
            own, pasted = (part.gather(1, place) for part, place in zip((own, pasted), places, strict=True))
        elif self.box is not None:
            top, left, bottom, right = self.box.unbind(1)
            rows = _resize_weights(top, bottom, self.share.shape[2], grid[0])  # (B, h, h)
            columns = _resize_weights(left, right, self.share.shape[3], grid[1])
            across = product(columns.unsqueeze(1), pasted.unflatten(1, grid))  # (B, h, w, V): row by row
            pasted = product(rows, across.flatten(2)).unflatten(2, across.shape[2:]).flatten(1, 2)
        return own, pasted

    def tokens(self, grid: tuple[int, int]) -> Tensor:
        """How much of each token is one's own, (B, h, w): its area fraction, for any grid."""
        return F.adaptive_avg_pool2d(self.share, grid).squeeze(1)

    @property
    def _images(self) -> int:
        return self.pool or len(self.partner)

    def _places(self, sources: Tensor, grid: tuple[int, int]) -> Iterator[Tensor]:
        """Which token of the own image, and of the partner's, lies at each place of a grid: (B, h·w) each"""
        cells = (sources.shape[2], sources.shape[3])
        (row, down), (column, right) = (
            _in_cells(side, count, sources.device) for side, count in zip(grid, cells, strict=True)
        )
        source = sources[:, :, row][..., column]  # (B, 2, h, w)
        rows = (2 * grid[0] * (source // cells[1]) + down[:, None]) // (2 * cells[0])
        columns = (2 * grid[1] * (source % cells[1]) + right) // (2 * cells[1])
        return iter((rows * grid[1] + columns).flatten(2).unbind(1))


def _in_cells(side: int, cells: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The cell of a line in which the middle of each place lies, and how far in it, in parts of 2·side: (side,) each"""
    middle = (2 * torch.arange(side, device=device) + 1) * cells
    return middle // (2 * side), middle % (2 * side)


def _move_cells(maps: Tensor, sources: Tensor) -> Tensor:
    """Maps (B, C, H, W) whose cells, h×w of them, show other cells (B, h, w)."""
    batch, channels, height, width = maps.shape
    rows, columns = sources.shape[1:]
    if height % rows or width % columns:
        raise ValueError(f"a map of {height}×{width} does not divide into the {rows}×{columns} cells that were moved")
    cells = maps.reshape(batch, channels, rows, height // rows, columns, width // columns)
    cells = cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, h·w, C, H/h, W/w)
    taken = cells[torch.arange(batch, device=maps.device)[:, None], sources.flatten(1)]
    return taken.unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5).reshape(maps.shape)


def _resize_into(maps: Tensor, box: Tensor) -> Tensor:
    """Maps (B, C, H, W), each resized into its box (B, 4); what lies around the box is of no use."""
    height, width = maps.shape[2:]
    top, left, bottom, right = box.unbind(1)
    row, column = _shown(top, bottom, height), _shown(left, right, width)
    pixel = (row.unsqueeze(2) * width + column.unsqueeze(1)).flatten(1)  # (B, H·W)
    return maps.flatten(2).gather(2, pixel.unsqueeze(1).expand(-1, maps.shape[1], -1)).view_as(maps)


def _shown(start: Tensor, end: Tensor, side: int) -> Tensor:
    """The pixel of a line that each pixel shows after the line was resized to [start, end): (B,), (B,) -> (B, side).
    The nearest one, as of `F.interpolate`: ⌊i·side/length⌋ for pixel i of the interval."""
    place = torch.arange(side, device=start.device) - start.unsqueeze(1)
    return (place * side // (end - start).clamp(min=1).unsqueeze(1)).clamp(0, side - 1)


def _resize_weights(start: Tensor, end: Tensor, side: int, tokens: int) -> Tensor:
    """How much of each of a line's tokens the tokens show that lie in [start, end) after the line was resized to it,
    where they do: (B,), (B,) -> (B, tokens, tokens), rows that sum to 1, or to 0 outside"""
    place = torch.arange(side, device=start.device)
    inside = (place >= start.unsqueeze(1)) & (place < end.unsqueeze(1))  # (B, side)
    token = _shown(start, end, side) * tokens // side  # (B, side): the one that each pixel shows
    shown = (token.unsqueeze(1) == torch.arange(tokens, device=start.device).unsqueeze(1)) & inside.unsqueeze(1)
    weights = F.adaptive_avg_pool1d(shown.float(), tokens).mT  # (B, tokens, side) -> (B, tokens, tokens)
    return weights / weights.sum(2, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
