"""TL-Align written naively from the paper: a label of C classes for every token, full N×N matrices, loops.

Nothing here uses labelflow, but for `Mix` as a record of who was mixed with whom.
"""

import torch
from torch import Tensor, nn

from labelflow import Mix


def dense_label(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    """The label (B, heads, C) that reaches each classifier of a model, for images that are mixed already."""
    with torch.no_grad():
        return ORACLES[type(model).__name__](model, images, mix, onehot)


def patch_labels(mix: Mix, onehot: Tensor, size: int, stride: int, padding: int = 0) -> Tensor:
    """Each token's label is the mean of its pixels' (Eq. 5, and the rule for patches that hold both): (B, h, w, C)"""
    batch, _, height, width = mix.share.shape
    h, w = (-(-(side + 2 * padding - size) // stride) + 1 for side in (height, width))
    if padding:  # a convolution leaves out what it cannot cover
        h, w = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
    labels = torch.zeros(batch, h, w, onehot.shape[1])
    for b in range(batch):
        own, other = onehot[b], onehot[mix.partner[b]]
        for i in range(h):
            for j in range(w):
                top, left = i * stride - padding, j * stride - padding
                pixels = mix.share[b, 0, max(top, 0) : top + size, max(left, 0) : left + size]
                labels[b, i, j] = pixels.mean() * own + (1 - pixels.mean()) * other
    return labels


def image_label(mix: Mix, onehot: Tensor) -> Tensor:
    lam = mix.share.mean((1, 2, 3)).unsqueeze(1)
    return (lam * onehot + (1 - lam) * onehot[mix.partner]).unsqueeze(1)  # (B, 1, C)


def softmax_attention(query: Tensor, key: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Eq. 6 and the mean over heads of Eq. 9: (B, A, N, D), (B, A, M, D) -> (B, N, M)"""
    scores = torch.einsum("band,bamd->banm", query, key) / query.shape[-1] ** 0.5 + bias
    return (scores.exp() / scores.exp().sum(-1, keepdim=True)).mean(1)


def vit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, model.patch_embed.patch_size[0], model.patch_embed.patch_size[0]).flatten(1, 2)
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    prefix = x.shape[1] - labels.shape[1]
    labels = torch.cat([image_label(mix, onehot).expand(-1, prefix, -1), labels], 1)
    for block in model.blocks:
        attn, normed = block.attn, x if type(block).__name__ == "ResPostBlock" else block.norm1(x)
        qkv = attn.qkv(normed).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = softmax_attention(attn.q_norm(qkv[0]), attn.k_norm(qkv[1]))
        labels = (labels + weights @ labels) / 2  # Eq. 11
        x = block(x)
    if model.global_pool == "avg":
        return labels[:, 0 if model.pool_include_prefix else prefix :].mean(1, keepdim=True)
    return labels[:, : 2 if hasattr(model, "dist_token") else 1]


def swin_matrix(block: nn.Module, x: Tensor) -> Tensor:
    """What each token's label is made of, over the whole map: (B, H, W, D) -> (B, H·W, H·W)."""
    batch, height, width, dim = x.shape
    (wh, ww), (sh, sw), attn = block.window_size, block.shift_size, block.attn
    full_h, full_w = -(-height // wh) * wh, -(-width // ww) * ww
    tokens = torch.zeros(batch, full_h, full_w, dim)  # rolled, then padded with zeros
    source = torch.full((full_h, full_w), -1)
    for i in range(height):
        for j in range(width):
            a, b = (i - sh) % height, (j - sw) % width
            tokens[:, a, b] = x[:, i, j]
            source[a, b] = i * width + j
    q, k, _ = attn.qkv(tokens).unflatten(-1, (3, attn.num_heads, -1)).permute(3, 0, 4, 1, 2, 5)
    table = attn.relative_position_bias_table.unflatten(0, (2 * wh - 1, 2 * ww - 1))

    def region(a: int, b: int) -> tuple[int, int]:
        return (
            0 if not sh or a < full_h - wh else 1 if a < full_h - sh else 2,
            0 if not sw or b < full_w - ww else 1 if b < full_w - sw else 2,
        )

    matrix = torch.zeros(batch, height * width, height * width)
    for top in range(0, full_h, wh):
        for left in range(0, full_w, ww):
            places = [(top + i, left + j) for i in range(wh) for j in range(ww)]
            for a in places:
                if source[a] < 0:
                    continue
                scores = torch.stack(
                    [
                        (q[..., a[0], a[1], :] * k[..., b[0], b[1], :]).sum(-1) / q.shape[-1] ** 0.5
                        + table[a[0] - b[0] + wh - 1, a[1] - b[1] + ww - 1]
                        - (0 if region(*a) == region(*b) or not (sh or sw) else 100)
                        for b in places
                    ],
                    -1,
                )  # (B, A, places)
                weights = scores.softmax(-1).mean(1)
                for b, weight in zip(places, weights.unbind(-1), strict=True):
                    if source[b] >= 0:  # padding holds no label
                        matrix[:, source[a], source[b]] += weight
    return matrix / matrix.sum(-1, keepdim=True)


def swin(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 4, 4)
    x = model.patch_embed(images)
    for stage in model.layers:
        if not isinstance(stage.downsample, nn.Identity):
            x = stage.downsample(x)
            merged = torch.zeros(*x.shape[:3], labels.shape[-1])
            for i in range(x.shape[1]):
                for j in range(x.shape[2]):
                    merged[:, i, j] = labels[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2))
            labels = merged
        for block in stage.blocks:
            matrix = swin_matrix(block, block.norm1(x))
            flat = labels.flatten(1, 2)
            labels = ((flat + matrix @ flat) / 2).unflatten(1, labels.shape[1:3])
            x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


def pvt_attention(attn: nn.Module, x: Tensor, labels: Tensor, grid: tuple[int, int]) -> Tensor:
    """g(Y) of PVT's attention, x normed (B, N, D), labels (B, N, C)."""
    query = attn.q(x).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
    keys, key_labels = x, labels
    if attn.sr is not None:
        image = x.transpose(1, 2).unflatten(2, grid)
        image = attn.pool(image) if attn.pool is not None else image
        reduced = attn.sr(image)
        rows, columns = reduced.shape[2:]
        keys = attn.norm(reduced.flatten(2).transpose(1, 2))
        keys = attn.act(keys) if attn.act is not None else keys
        label_map = labels.unflatten(1, grid)
        key_labels = torch.zeros(len(x), rows, columns, labels.shape[-1])
        for i in range(rows):
            for j in range(columns):
                if attn.pool is not None:  # adaptive pooling's windows
                    a, b = i * grid[0] // rows, -(-(i + 1) * grid[0] // rows)
                    c, d = j * grid[1] // columns, -(-(j + 1) * grid[1] // columns)
                else:
                    r = attn.sr.kernel_size[0]
                    a, b, c, d = i * r, (i + 1) * r, j * r, (j + 1) * r
                key_labels[:, i, j] = label_map[:, a:b, c:d].mean((1, 2))
        key_labels = key_labels.flatten(1, 2)
    key = attn.kv(keys).unflatten(-1, (2, attn.num_heads, -1))[:, :, 0].transpose(1, 2)
    return softmax_attention(query, key) @ key_labels


def pvt(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 4, 4), images
    for stage in range(1, 5):
        embed, blocks = getattr(model, f"patch_embed{stage}"), getattr(model, f"block{stage}")
        if stage > 1:
            h, w = labels.shape[1] // 2, labels.shape[2] // 2
            labels = labels.unflatten(1, (h, 2)).unflatten(3, (w, 2)).mean((2, 4))
        x = embed(x)
        grid = tuple(x.shape[1:3])
        x, labels = x.flatten(1, 2), labels.flatten(1, 2)
        if stage == 4:
            x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1)
            labels = torch.cat([image_label(mix, onehot), labels], 1)
        positions = getattr(model, f"pos_embed{stage}")
        old, extra = model.grids[stage - 1], int(stage == 4)
        if old != grid:
            spatial = positions[:, extra:].transpose(1, 2).unflatten(2, old)
            spatial = nn.functional.interpolate(spatial, size=grid, mode="bilinear").flatten(2).transpose(1, 2)
            positions = torch.cat([positions[:, :extra], spatial], 1)
        x = x + positions
        for block in blocks:
            labels = (labels + pvt_attention(block.attn, block.norm1(x), labels, grid)) / 2
            x = block(x, grid)
        if stage < 4:
            x, labels = x.transpose(1, 2).unflatten(2, grid), labels.unflatten(1, grid)
    return labels[:, :1]


def convolution_matrix(kernel: Tensor, grid: tuple[int, int]) -> Tensor:
    """T(K) of one channel as a matrix, absolute and normalised per row: (r, r) -> (h·w, h·w)"""
    h, w = grid
    reach = kernel.shape[0] // 2
    matrix = torch.zeros(h * w, h * w)
    for i in range(h):
        for j in range(w):
            for a in range(-reach, reach + 1):
                for b in range(-reach, reach + 1):
                    if 0 <= i + a < h and 0 <= j + b < w:
                        matrix[i * w + j, (i + a) * w + j + b] = kernel[a + reach, b + reach].abs()
    return matrix / matrix.sum(1, keepdim=True)


def pvt_v2(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 7, 4, 3)
    x = model.patch_embed(images)
    for stage in model.stages:
        if stage.downsample is not None:
            x = stage.downsample(x)
            merged = torch.zeros(*x.shape[:3], labels.shape[-1])
            for i in range(x.shape[1]):
                for j in range(x.shape[2]):
                    rows, columns = slice(max(2 * i - 1, 0), 2 * i + 2), slice(max(2 * j - 1, 0), 2 * j + 2)
                    merged[:, i, j] = labels[:, rows, columns].mean((1, 2))
            labels = merged
        grid = tuple(x.shape[1:3])
        x, labels = x.flatten(1, 2), labels.flatten(1, 2)
        for block in stage.blocks:
            labels = (labels + pvt_attention(block.attn, block.norm1(x), labels, grid)) / 2
            kernels = block.mlp.dwconv.weight[:, 0]
            matrix = torch.stack([convolution_matrix(kernel, grid) for kernel in kernels]).mean(0)
            labels = (labels + matrix @ labels) / 2
            x = block(x, grid)
        x = stage.norm(x).transpose(1, 2).unflatten(2, grid)
        labels = labels.unflatten(1, grid)
    return labels.mean((1, 2)).unsqueeze(1)


def window_labels(labels: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """The mean label of each window of a map (B, h, w, C); what lies outside the map does not count."""
    rows, columns = ((side + 2 * padding - size) // stride + 1 for side in labels.shape[1:3])
    pooled = torch.zeros(len(labels), rows, columns, labels.shape[-1])
    for i in range(rows):
        for j in range(columns):
            top, left = i * stride - padding, j * stride - padding
            window = labels[:, max(top, 0) : top + size, max(left, 0) : left + size]
            pooled[:, i, j] = window.mean((1, 2))
    return pooled


def token_matrix(module: nn.Module, x: Tensor) -> Tensor:
    """The attention of one of T2T-ViT's token modules, in full: (B, N, C) -> (B, N, N)"""
    if type(module).__name__ == "TokenTransformer":
        q, k, _ = module.attn.qkv(module.norm1(x)).chunk(3, -1)
        return (q @ k.mT / x.shape[-1] ** 0.5).softmax(-1)
    k, q, _ = module.kqv(module.norm1(x)).double().chunk(3, -1)
    w = module.w.double()
    k, q = (torch.exp(z @ w.T - (z * z).sum(-1, keepdim=True) / 2) for z in (k, q))
    matrix = torch.einsum("bnm,bkm->bnk", q, k)
    return (matrix / matrix.sum(-1, keepdim=True)).float()


def t2t(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    stem, x = model.tokens_to_token, images
    labels = patch_labels(mix, onehot, 7, 4, 2)
    for split, module in ((stem.soft_split0, stem.attention1), (stem.soft_split1, stem.attention2)):
        grid = tuple(labels.shape[1:3])
        tokens = split(x)
        flat = labels.flatten(1, 2)
        flat = (flat + token_matrix(module, tokens) @ flat) / 2
        x = module(tokens).transpose(1, 2).unflatten(2, grid)
        labels = window_labels(flat.unflatten(1, grid), 3, 2, 1)
    labels = torch.cat([image_label(mix, onehot), labels.flatten(1, 2)], 1)
    seen: list[Tensor] = []  # what goes into each block, positions included
    hooks = [block.register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0])) for block in model.blocks]
    model(images)
    for block, x, hook in zip(model.blocks, seen, hooks, strict=True):
        hook.remove()
        attn = block.attn
        q, k, _ = attn.qkv(block.norm1(x)).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
        labels = (labels + softmax_attention(attn.q_norm(q), k) @ labels) / 2
    return labels[:, :1]


ORACLES = {
    "VisionTransformer": vit,
    "VisionTransformerDistilled": vit,
    "SwinTransformer": swin,
    "PyramidVisionTransformer": pvt,
    "PyramidVisionTransformerV2": pvt_v2,
    "LVViT": vit,
    "T2TViT": t2t,
}
