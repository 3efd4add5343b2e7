"""Plain ViTs."""

import torch
from timm.models.vision_transformer import ResPostBlock
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "vit": ("vit_tiny_patch16_224", VIT, (32, 32)),
    "vit, oblong": ("vit_tiny_patch16_224", {**VIT, "img_size": (24, 40)}, (24, 40)),
    "vit, any size": ("vit_tiny_patch16_224", {**VIT, "dynamic_img_size": True, "dynamic_img_pad": True}, (28, 45)),
    "vit, unfused": ("vit_tiny_patch16_224", VIT, (32, 32)),
    "vit, registers": ("vit_tiny_patch16_224", {**VIT, "reg_tokens": 4, "qk_norm": True}, (32, 32)),
    "vit, average": ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg"}, (32, 32)),
    "vit, average of all": (
        "vit_tiny_patch16_224",
        {**VIT, "global_pool": "avg", "pool_include_prefix": True, "reg_tokens": 2},
        (32, 32),
    ),
    "vit, post-norm": ("vit_tiny_patch16_224", {**VIT, "block_fn": ResPostBlock, "init_values": 1.0}, (32, 32)),
    "vit, no class token": ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg", "class_token": False}, (32, 32)),
    "deit distilled": ("deit_tiny_distilled_patch16_224", VIT, (32, 32)),
    "deit3": ("deit3_small_patch16_224", VIT, (32, 32)),
}
SOME = ["vit"]  # for what does not depend on the details


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


ORACLES = {"VisionTransformer": vit, "VisionTransformerDistilled": vit}
