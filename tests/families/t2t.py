"""T2T-ViT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention, window_labels

T2T = {"token_dim": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "t2t performer": ("t2t_vit_14", {**T2T, "img_size": 64}, (64, 64)),
    "t2t performer, oblong": ("t2t_vit_14", {**T2T, "img_size": 64}, (48, 72)),
    "t2t transformer": ("t2t_vit_t_14", {**T2T, "img_size": 64, "qk_scale": 0.2}, (64, 64)),
    "t2t transformer, unfused": ("t2t_vit_t_14", {**T2T, "img_size": (40, 64)}, (40, 64)),
}
SOME = ["t2t performer", "t2t transformer"]  # for what does not depend on the details


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


ORACLES = {"T2TViT": t2t}
