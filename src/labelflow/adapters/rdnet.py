"""RDNet: each block of a stage convolves what all blocks before it have made, side by side."""

from timm.models.rdnet import DenseStage, RDNet
from torch import nn

from labelflow.adapters import convolutions
from labelflow.adapters.averages import convolutions_in, register_average
from labelflow.adapters.registry import Observed, register
from labelflow.flow import Labels


@register(DenseStage)
def stage(module: DenseStage, observed: Observed, labels: Labels) -> Labels:
    """Channels that are concatenated count alike: the mean over all of them."""
    joined = labels.map
    for block in module:
        (depthwise, *_) = block.layers.layers  # the others are 1×1
        moved = convolutions.convolve(depthwise, joined, still=False)
        part = block.growth_rate / (depthwise.in_channels + block.growth_rate)
        joined = part * moved + (1 - part) * joined
    return labels.with_map(joined)


def _path(model: RDNet) -> list[nn.Module]:
    path = convolutions_in(model.stem)
    for *transition, dense in model.dense_stages:
        path += [one for one in transition if isinstance(one, nn.Conv2d) and one.stride != (1, 1)]
        path.append(dense)
    return path


register_average(RDNet, path=_path)
