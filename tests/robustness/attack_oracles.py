"""The attacks' definitions, written naively from the papers: one image, one number at a time."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy import ndarray
from scipy.optimize import linprog, minimize
from torch import Tensor

from labelflow.robustness.attacks import Ball


def naive_dlr(logits: list[float], label: int) -> float:
    ordered = sorted(logits, reverse=True)
    other = max(z for place, z in enumerate(logits) if place != label)
    return -(logits[label] - other) / (ordered[0] - ordered[2])


def naive_dlr_targeted(logits: list[float], label: int, target: int) -> float:
    ordered = sorted(logits, reverse=True)
    return -(logits[label] - logits[target]) / (ordered[0] - 0.5 * (ordered[2] + ordered[3]))


def naive_apgd(
    function: Callable[[Tensor], Tensor], clean: Tensor, start: Tensor, ball: Ball, steps: int
) -> tuple[Tensor, float, list[float]]:
    """Algorithm 1 on one image (1, K, H, W): the best point, its value, and the sizes of all steps."""

    def at(point: Tensor) -> tuple[float, Tensor]:
        point = point.clone().requires_grad_()
        value = function(point)
        return float(value.detach()), torch.autograd.grad(value, point)[0]

    periods, share, gap = [], 0.22, 0.22
    while share <= 1 + 1e-9:
        periods.append(math.ceil(share * steps - 1e-9))
        gap = max(gap - 0.03, 0.06)
        share += gap
    points, values, size, sizes = [start], [at(start)[0]], 2 * ball.radius, []
    best_point, best = start, values[0]
    last, last_best, last_halved, rose = 0, best, False, 0
    for step in range(steps):
        here = points[-1]
        if step in periods:
            too_few = rose <= 0.75 * (step - last)
            stuck = not last_halved and best == last_best
            last_halved = too_few or stuck
            if last_halved:
                size, here = size / 2, best_point
                points[-1], values[-1] = best_point, best
            last, last_best, rose = step, best, 0
        sizes.append(size)
        gradient = at(here)[1]
        unit = gradient.sign() if ball.norm == "linf" else gradient / gradient.square().sum().sqrt()
        ahead = ball.project(here + size * unit, clean)
        if step > 0:
            ahead = ball.project(here + 0.75 * (ahead - here) + 0.25 * (here - points[-2]), clean)
        value = at(ahead)[0]
        rose += value > values[-1]
        points.append(ahead)
        values.append(value)
        if value > best:
            best_point, best = ahead, value
    return best_point, best, sizes


def nearest_on_plane(point: ndarray, normal: ndarray, offset: float, norm: str) -> float | None:
    """The length of the shortest move to the plane inside the box, by scipy; None if the box does not reach it."""
    size = len(point)
    reach = [(min(n * -x, n * (1 - x)), max(n * -x, n * (1 - x))) for n, x in zip(normal, point, strict=True)]
    if not sum(low for low, _ in reach) <= -offset <= sum(high for _, high in reach):
        return None
    if norm == "linf":  # minimise t with -t ≤ move ≤ t
        above = np.hstack([np.vstack([np.eye(size), -np.eye(size)]), -np.ones((2 * size, 1))])
        found = linprog(
            np.eye(size + 1)[-1],
            A_ub=above,
            b_ub=np.zeros(2 * size),
            A_eq=np.append(normal, 0)[None],
            b_eq=[-offset],
            bounds=[*((-x, 1 - x) for x in point), (0, None)],
        )
        return float(found.fun) if found.success else None
    found = minimize(
        lambda move: move @ move,
        np.zeros(size),
        jac=lambda move: 2 * move,
        bounds=[(-x, 1 - x) for x in point],
        constraints={"type": "eq", "fun": lambda move: normal @ move + offset, "jac": lambda move: normal},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return math.sqrt(found.fun) if found.success else None


def naive_bump(h1: int, h2: int) -> list[list[float]]:
    """Square Attack's Eq. 2, with the paper's indices from 1 on; h1 is the longer side."""
    n = h1 // 2

    def value(r: int, s: int) -> float:
        m = n - max(abs(r - h1 // 2 - 1), abs(s - h2 // 2 - 1))
        return sum(1 / (n + 1 - k) ** 2 for k in range(m + 1))

    return [[value(r, s) for s in range(1, h2 + 1)] for r in range(1, h1 + 1)]


def naive_shift(
    move: Tensor, radius: float, bumps: Tensor, first: tuple[int, int], second: tuple[int, int], signs: list[int]
) -> Tensor:
    """Square Attack's Algorithm 3 on one move (K, H, W)."""
    size = len(bumps)
    unused = radius**2 - float(move.square().sum())
    shape = bumps / bumps.square().sum().sqrt()
    shifted = move.clone()
    for channel, sign in enumerate(signs):
        inside = {(first[0] + r, first[1] + s) for r in range(size) for s in range(size)}
        other = {(second[0] + r, second[1] + s) for r in range(size) for s in range(size)}
        budget = math.sqrt(sum(float(move[channel, r, s]) ** 2 for r, s in inside | other) + unused / len(signs))
        here = move[channel, first[0] : first[0] + size, first[1] : first[1] + size]
        length = float(here.square().sum().sqrt())
        new = sign * shape + (here / length if length else here)
        for r, s in other:
            shifted[channel, r, s] = 0
        new = new / new.square().sum().sqrt() * budget
        shifted[channel, first[0] : first[0] + size, first[1] : first[1] + size] = new
    return shifted
