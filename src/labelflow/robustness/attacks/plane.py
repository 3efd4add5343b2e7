"""The shortest way to a hyperplane inside the box [0, 1]: exact, by sorting.

B batch, D pixels.
"""

import torch
from torch import Tensor


def way_to_plane(point: Tensor, normal: Tensor, offset: Tensor, norm: str) -> Tensor:
    """The shortest move (B, D), in `linf` or `l2`, to {z in [0, 1]: normal·(z - point) + offset = 0}.

    Where the box does not reach the plane, the move goes to the corner nearest to it.
    point: (B, D) in [0, 1]; normal: (B, D); offset: (B,).

    Pixels move towards the plane at rates of 1 (linf) or in proportion to the normal (l2) until they meet the box, so
    what they gain by the time λ is piecewise linear in λ, with a corner wherever a pixel meets the box.

    >>> way_to_plane(torch.tensor([[0.5, 0.9]]), torch.tensor([[1.0, 1.0]]), torch.tensor([-0.4]), "linf")
    tensor([[0.3000, 0.1000]])
    """
    scale = normal.abs().amax(1, keepdim=True).clamp(min=torch.finfo(normal.dtype).tiny)
    normal, need = normal / scale, (offset[:, None] / scale).abs()  # need (B, 1)
    normal = torch.where(normal.abs() < 1e-12, 0, normal)
    direction = -normal.sign() * offset.sign()[:, None]
    room = torch.where(direction > 0, 1 - point, point)
    rate = torch.ones_like(normal) if norm == "linf" else normal.abs()
    gain = normal.abs() * rate
    end = torch.where(gain > 0, room / rate, 0)  # the λ at which a pixel meets the box

    ends, order = end.sort(1)
    gains = gain.gather(1, order)
    settled = (gains * ends).cumsum(1) - gains * ends  # by the pixels that met the box before this one
    moving = gains.flip(1).cumsum(1).flip(1)  # the gain of this pixel and those after it
    corner = torch.searchsorted(settled + ends * moving, need).clamp(max=point.shape[1] - 1)  # (B, 1)
    last = ends.gather(1, corner)
    time = (need - settled.gather(1, corner)) / moving.gather(1, corner).clamp(min=torch.finfo(normal.dtype).tiny)
    return direction * torch.minimum(torch.minimum(time, last).clamp(min=0) * rate, room)
