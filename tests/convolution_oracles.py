"""What the naive versions of TL-Align for convolutional networks share: kernels as matrices, windows, and attention's
weights, read off with values that are 1 at one place only."""

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from timm.layers import (
    Attention2d,
    AttentionPool2d,
    BlurPool2d,
    CondConv2d,
    Conv2dSame,
    MixedConv2d,
    MultiQueryAttention2d,
    RotAttentionPool2d,
    ScaledStdConv2d,
    StdConv2d,
    pad_same,
)
from timm.layers.bottleneck_attn import BottleneckAttn
from timm.layers.halo_attn import HaloAttn
from timm.layers.lambda_layer import LambdaLayer
from torch import Tensor, nn

from labelflow import Mix
from oracles import patch_labels

ATTENTIONS = Attention2d | MultiQueryAttention2d | BottleneckAttn | HaloAttn | LambdaLayer


def kernel_matrix(convolution: nn.Conv2d, grid: tuple[int, int], weight: Tensor | None = None) -> tuple[Tensor, tuple]:
    """The mean over output channels of Norm(|T(K)|), (i·j, h·w), with its rows' grid (i, j)."""
    weight = convolution.weight if weight is None else weight
    if isinstance(convolution, StdConv2d | ScaledStdConv2d):
        flat = weight.flatten(1)
        weight = ((flat - flat.mean(1, keepdim=True)) / flat.std(1, keepdim=True)).view_as(weight)
    places, padding = torch.eye(grid[0] * grid[1]).view(-1, 1, *grid), convolution.padding
    if isinstance(convolution, Conv2dSame):
        places, padding = pad_same(places, weight.shape[2:], convolution.stride), 0
    kernel = weight.abs().sum(1, keepdim=True)
    columns = F.conv2d(places, kernel, None, convolution.stride, padding, convolution.dilation)  # (h·w, C, i, j)
    matrices = columns.flatten(2).permute(1, 2, 0)
    return (matrices / matrices.sum(-1, keepdim=True)).mean(0), tuple(columns.shape[2:])


def convolved(labels: Tensor, convolution: nn.Conv2d, weight: Tensor | None = None) -> Tensor:
    matrix, grid = kernel_matrix(convolution, tuple(labels.shape[1:3]), weight)
    return (matrix @ labels.flatten(1, 2)).unflatten(1, grid)


def windows(labels: Tensor, size: int, stride: int, before: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """The mean label of each window; those in front begin so many places before the map."""
    result = torch.zeros(len(labels), *grid, labels.shape[3])
    for i, j in itertools.product(range(grid[0]), range(grid[1])):
        top, left = i * stride - before[0], j * stride - before[1]
        result[:, i, j] = labels[:, max(top, 0) : top + size, max(left, 0) : left + size].mean((1, 2))
    return result


def pooled(labels: Tensor, module: nn.Module) -> Tensor:
    """By a pool, or by a convolution that is taken as one."""
    names = ("kernel_size", "stride", "padding")
    size, stride, padding = (side if isinstance(side := getattr(module, name), int) else side[0] for name in names)
    count = math.ceil if getattr(module, "ceil_mode", False) else math.floor
    grid = [count((side + 2 * padding - size) / stride) + 1 for side in labels.shape[1:3]]
    before = (padding, padding)
    if isinstance(module, Conv2dSame):
        grid = [-(-side // stride) for side in labels.shape[1:3]]
        both = [max((i - 1) * stride + size - side, 0) for i, side in zip(grid, labels.shape[1:3], strict=True)]
        before = (both[0] // 2, both[1] // 2)
    return windows(labels, size, stride, before, (grid[0], grid[1]))


def blurred(labels: Tensor, blur: BlurPool2d) -> Tensor:
    """Beyond the border, the map is mirrored."""
    (height, width), reach = labels.shape[1:3], blur.padding[0]
    result = torch.zeros(len(labels), *(-(-side // blur.stride) for side in (height, width)), labels.shape[3])
    for i, j in itertools.product(range(result.shape[1]), range(result.shape[2])):
        for a, b in itertools.product(range(blur.filt_size), repeat=2):
            row, column = abs(i * blur.stride + a - reach), abs(j * blur.stride + b - reach)
            row, column = min(row, 2 * height - 2 - row), min(column, 2 * width - 2 - column)
            result[:, i, j] += blur.filt[0, 0, a, b] * labels[:, row, column]
    return result


class Walk:
    """Labels through modules that run one after another; with what some of these have seen in a forward pass."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self.inputs: dict[nn.Module, tuple[Tensor, ...]] = {}
        watched = [
            m for m in model.modules() if isinstance(m, CondConv2d | AttentionPool2d | RotAttentionPool2d | ATTENTIONS)
        ]
        hooks = [m.register_forward_pre_hook(lambda m, inputs: self.inputs.update({m: inputs})) for m in watched]
        model(images)
        for hook in hooks:
            hook.remove()

    def __call__(self, labels: Tensor, *modules: nn.Module | None, stem: bool = False) -> Tensor:
        for module in modules:
            if isinstance(module, nn.Conv2d):
                labels = (pooled if stem and module.stride != (1, 1) else convolved)(labels, module)
            elif isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
                labels = pooled(labels, module)
            elif isinstance(module, BlurPool2d):
                labels = blurred(labels, module)
            elif isinstance(module, MixedConv2d):
                parts = [convolved(labels, convolution) * convolution.out_channels for convolution in module.values()]
                labels = sum(parts) / sum(convolution.out_channels for convolution in module.values())
            elif isinstance(module, CondConv2d):
                kernels = (self.inputs[module][1] @ module.weight).view(-1, *module.weight_shape)
                images = zip(labels.split(1), kernels, strict=True)
                labels = torch.cat([convolved(image, module, kernel) for image, kernel in images])
            elif isinstance(module, ATTENTIONS):
                labels = attended(labels, module, self.inputs[module][0])
            elif module is not None:
                labels = self(labels, *module.children(), stem=stem)
        return labels


class Given(nn.Module):
    """Returns what it has been given, whatever it is called with."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value


def attended(labels: Tensor, module: nn.Module, x: Tensor) -> Tensor:
    """With values that are 1 at one place and 0 elsewhere, timm's own code tells what each place takes from which."""
    twin, heads = copy.deepcopy(module), module.num_heads
    if isinstance(module, MultiQueryAttention2d):
        labels = convolved(labels, module.value.down_conv) if module.kv_stride > 1 else labels
    height, width = labels.shape[1:3]
    count = height * width
    places = torch.eye(count).view(1, count, height, width).expand(len(x), -1, -1, -1)  # (B, M, h, w)
    if isinstance(module, Attention2d):
        query, key, _ = module.qkv(x).flatten(2).unflatten(1, (3, heads, -1)).transpose(-1, -2).unbind(1)
        weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1).mean(1)
        return (weights @ labels.flatten(1, 2)).unflatten(1, (height, width))
    if isinstance(module, MultiQueryAttention2d):
        twin.value, twin.output = Given(places), nn.Identity()
    elif isinstance(module, BottleneckAttn):
        twin.qkv = Given(torch.cat([module.qkv(x)[:, : 2 * module.dim_out_qk], places.repeat(1, heads, 1, 1)], 1))
    elif isinstance(module, HaloAttn):
        keys = module.kv(x).unflatten(1, (heads, -1))[:, :, : module.dim_head_qk]
        twin.kv = Given(torch.cat([keys, places.unsqueeze(1).expand(-1, heads, -1, -1, -1)], 2).flatten(1, 2))
    else:
        twin.qkv = Given(torch.cat([module.qkv(x)[:, : -module.dim_v], places], 1))
        twin.norm_v, twin.dim_v = nn.Identity(), count
        if twin.conv_lambda is not None:
            twin.conv_lambda.bias = None
        x = x.new_empty(len(x), heads * count, height, width)  # its shape is what the output gets
    twin.dim_head_v, twin.dim_out_v, twin.pool = count, heads * count, nn.Identity()
    output = twin(x)  # (B, A·M, i, j)
    weights = output.flatten(2).unflatten(1, (heads, count)).transpose(-1, -2).abs()
    weights = weights / weights.sum(-1, keepdim=True) if isinstance(module, LambdaLayer) else weights
    matrix = weights.mean(1)
    mixed = (matrix / matrix.sum(-1, keepdim=True)) @ labels.flatten(1, 2)
    mixed = mixed.unflatten(1, output.shape[2:])
    pool = getattr(module, "pool", None)
    return pooled(mixed, pool) if isinstance(pool, nn.AvgPool2d) else mixed


def pixels(mix: Mix, onehot: Tensor) -> Tensor:
    return patch_labels(mix, onehot, 1, 1)


def average(*maps: Tensor) -> Tensor:
    return torch.stack(maps).mean(0)


def joined(parts: list[tuple[Tensor, int]]) -> Tensor:
    """Maps that are concatenated count by their channels."""
    return sum(labels * channels for labels, channels in parts) / sum(channels for _, channels in parts)
