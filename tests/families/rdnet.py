"""RDNet, a DenseNet of ConvNeXt's blocks."""

from timm.models.rdnet import RDNet
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, window_labels

RDNET = {
    "growth_rates": (8, 12, 16),
    "num_blocks_list": (2, 3, 2),
    "block_type": ("Block", "BlockESE", "BlockESE"),
    "is_downsample_block": (None, True, False),
    "num_init_features": 16,
    "num_classes": 5,
}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "rdnet": (RDNet, RDNET, (64, 64)),
    "rdnet, overlapping stem": (RDNet, {**RDNET, "stem_type": "overlap", "head_norm_first": True}, (48, 64)),
}
SOME = ["rdnet"]  # for what does not depend on the details


def rdnet(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    if model.stem[0].kernel_size == (4, 4):
        labels = patch_labels(mix, onehot, 4, 4)
    else:
        labels = window_labels(patch_labels(mix, onehot, 3, 2, 1), 3, 2, 1)
    channels = model.stem[0].out_channels
    for *transition, stage in model.dense_stages:
        if transition:
            channels = transition[1].out_channels
            if transition[1].stride == (2, 2):
                labels = window_labels(labels, 2, 2, 0)
        features = [(channels, labels)]
        for block in stage:
            channels = sum(count for count, _ in features)
            everything = sum(count * feature for count, feature in features) / channels
            features.append((block.growth_rate, convolved(everything, block.layers.layers[0])))
        channels = sum(count for count, _ in features)
        labels = sum(count * feature for count, feature in features) / channels
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"RDNet": rdnet}
