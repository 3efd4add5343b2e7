"""FastViT: summed branches of convolutions, in two forms, and attention in the last stages."""

from functools import partial

from timm.layers import LayerNorm2d
from timm.models.fastvit import AttentionBlock, FastVit, RepConditionalPosEnc
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, softmax_attention, window_labels

FASTVIT = {
    "layers": (1, 1, 2),
    "embed_dims": (8, 16, 64),
    "mlp_ratios": (2, 2, 2),
    "token_mixers": ("repmixer", "repmixer", "attention"),
    "downsamples": (False, True, True),
    "pos_embs": (None, None, partial(RepConditionalPosEnc, spatial_shape=(7, 7))),
    "se_downsamples": (False, False, True),
    "norm_layer": partial(LayerNorm2d, eps=1e-5),  # as in MCi3: batch norms of random weights leave scores too large
    "num_classes": 5,
}
CONVOLUTIONS = {"token_mixers": ("repmixer",) * 3, "pos_embs": (None,) * 3}
MCI3 = {"stem_use_scale_branch": False, "lkc_use_act": True}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "fastvit": (FastVit, FASTVIT, (48, 48)),
    "fastvit, unfused": (FastVit, {**FASTVIT, **MCI3}, (48, 56)),
    "fastvit, convolutions alone": (FastVit, {**FASTVIT, **CONVOLUTIONS, "layer_scale_init_value": None}, (48, 48)),
    "fastvit, reparameterised": (FastVit, {**FASTVIT, "inference_mode": True}, (48, 48)),
}
SOME = ["fastvit"]  # for what does not depend on the details


def mean(*maps: Tensor) -> Tensor:
    return sum(maps) / len(maps)


def merged(block: nn.Module, labels: Tensor) -> Tensor:
    """Each branch of a strided sum takes the plain mean of its window."""
    if block.reparam_conv is not None:
        sizes = [block.reparam_conv.kernel_size[0]]
    elif hasattr(block, "large_conv"):
        sizes = [block.kernel_size, block.small_kernel]
    else:
        sizes = [block.kernel_size] + ([1] if block.conv_scale is not None else [])
    return mean(*(window_labels(labels, size, 2, size // 2) for size in sizes))


def rep_mixer(module: nn.Module, labels: Tensor) -> Tensor:
    if module.reparam_conv is not None:
        return convolved(labels, module.reparam_conv)
    moved = convolved(labels, module.mixer.conv_kxk[0].conv)
    return mean(labels, moved, labels, labels, labels)  # shortcut, k×k, 1×1, and two batch norms


def fastvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = merged(model.stem[1], merged(model.stem[0], patch_labels(mix, onehot, 1, 1)))
    x = model.stem(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = merged(stage.downsample.proj[0], labels)
        x = stage.downsample(x)
        if not isinstance(stage.pos_emb, nn.Identity):
            if stage.pos_emb.reparam_conv is not None:
                labels = convolved(labels, stage.pos_emb.reparam_conv)
            else:
                labels = mean(labels, convolved(labels, stage.pos_emb.pos_enc))
        x = stage.pos_emb(x)
        for block in stage.blocks:
            if isinstance(block, AttentionBlock):
                attn = block.token_mixer
                qkv = attn.qkv(block.norm(x).flatten(2).mT)  # (B, N, 3·A·32)
                query, key, _ = qkv.view(*qkv.shape[:2], 3, -1, 32).permute(2, 0, 3, 1, 4)
                moved = (softmax_attention(query, key) @ labels.flatten(1, 2)).view_as(labels)
                labels = mean(labels, moved)
            else:
                labels = rep_mixer(block.token_mixer, labels)
            labels = mean(labels, convolved(labels, block.mlp.conv.conv))
            x = block(x)
    if model.final_conv.reparam_conv is not None:
        labels = convolved(labels, model.final_conv.reparam_conv)
    else:
        labels = mean(convolved(labels, model.final_conv.conv_kxk[0].conv), labels)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"FastVit": fastvit}
