"""torchvision's ViT and Swin, v1 and v2."""

import torch
from torch import Tensor, nn
from torchvision.models import swin_transformer, vision_transformer

from families.swin_v2 import cosine_attention
from labelflow import Mix
from oracles import image_label, merge_labels, patch_labels, softmax_attention, window_labels, window_matrix


class TorchvisionViT(vision_transformer.VisionTransformer):
    """Under a name of its own."""


class TorchvisionSwin(swin_transformer.SwinTransformer):
    """Under a name of its own."""


STEM = [vision_transformer.ConvStemConfig(8, 3, 2), vision_transformer.ConvStemConfig(16, 3, 2)]
VIT = {"image_size": 32, "num_layers": 3, "num_heads": 3, "hidden_dim": 24, "mlp_dim": 48, "num_classes": 5}
SWIN = {"patch_size": [4, 4], "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "num_classes": 5}
V2 = {"block": swin_transformer.SwinTransformerBlockV2, "downsample_layer": swin_transformer.PatchMergingV2}

# name: (what makes it, its arguments, an image size it takes)
FAMILIES = {
    "torchvision vit": (TorchvisionViT, {**VIT, "patch_size": 8}, (32, 32)),
    "torchvision vit, stem": (TorchvisionViT, {**VIT, "patch_size": 4, "conv_stem_configs": STEM}, (32, 32)),
    "torchvision swin": (TorchvisionSwin, {**SWIN, "window_size": [4, 4]}, (32, 32)),
    "torchvision swin, padded": (TorchvisionSwin, {**SWIN, "window_size": [4, 4]}, (36, 52)),
    "torchvision swin v2": (TorchvisionSwin, {**SWIN, **V2, "window_size": [4, 4]}, (32, 32)),
    "torchvision swin v2, padded": (TorchvisionSwin, {**SWIN, **V2, "window_size": [4, 3]}, (36, 52)),
}
SOME = ["torchvision vit", "torchvision swin v2"]  # for what does not depend on the details


def vit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    if isinstance(model.conv_proj, nn.Conv2d):
        labels = patch_labels(mix, onehot, 8, 8).flatten(1, 2)
    else:
        labels = window_labels(patch_labels(mix, onehot, 3, 2, 1), 3, 2, 1).flatten(1, 2)
    labels = torch.cat([image_label(mix, onehot), labels], 1)
    x = torch.cat([model.class_token.expand(len(images), -1, -1), model._process_input(images)], 1)
    x = x + model.encoder.pos_embedding
    for block in model.encoder.layers:
        qkv = nn.functional.linear(
            block.ln_1(x), block.self_attention.in_proj_weight, block.self_attention.in_proj_bias
        )
        q, k, _ = qkv.unflatten(-1, (3, block.num_heads, -1)).permute(2, 0, 3, 1, 4)
        labels = (labels + softmax_attention(q, k) @ labels) / 2  # Eq. 11
        x = block(x)
    return labels[:, :1]


def attention(attn: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """(B, places, D) -> (B, places, places)"""
    rows, columns = attn.window_size
    q, k, _ = attn.qkv(tokens).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    table = attn.relative_position_bias_table.unflatten(0, (2 * rows - 1, 2 * columns - 1))
    places = [(i, j) for i in range(rows) for j in range(columns)]
    index = torch.tensor([[(a[0] - b[0] + rows - 1, a[1] - b[1] + columns - 1) for b in places] for a in places])
    return softmax_attention(q, k, table[index[..., 0], index[..., 1]].permute(2, 0, 1) + mask)


def attention_v2(attn: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    attn.q_bias, _, attn.v_bias = attn.qkv.bias.chunk(3)  # as in timm's
    weights = cosine_attention(attn, tokens, mask)
    del attn.q_bias, attn.v_bias
    return weights


def swin(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 4, 4)
    x = model.features[0](images)
    for stage in model.features[1:]:
        if not isinstance(stage, nn.Sequential):
            x, labels = stage(x), merge_labels(labels)
            continue
        for block in stage:
            attn, second = block.attn, isinstance(block, swin_transformer.SwinTransformerBlockV2)
            window = attn.window_size
            shift = [
                0 if side <= reach else step
                for side, reach, step in zip(x.shape[1:3], window, attn.shift_size, strict=True)
            ]
            matrix = window_matrix(
                x if second else block.norm1(x),
                window,
                shift,
                lambda *tokens, attn=attn, second=second: (attention_v2 if second else attention)(attn, *tokens),
                pad_first=True,
            )
            flat = labels.flatten(1, 2)
            labels = ((flat + matrix @ flat) / 2).unflatten(1, labels.shape[1:3])
            x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"TorchvisionViT": vit, "TorchvisionSwin": swin}
