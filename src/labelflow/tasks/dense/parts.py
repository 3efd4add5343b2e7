"""What is backbone and what is head in a segmenter or detector, in timm's terms."""

import math
from collections.abc import Callable
from typing import Any

from timm.models import group_parameters
from torch import nn


class BackboneAndHeads:
    """Of a module with a backbone, a timm model without its classifier: what layer decay, freezing and the heads' own
    learning rate need to know."""

    backbone_name: str  # of that module

    def group_matcher(self: Any, coarse: bool = False) -> Callable[[str], float]:
        """The backbone's layers, as timm counts them; all else is the layer after them, as a classifier is."""
        backbone, prefix = self.get_submodule(self.backbone_name), f"{self.backbone_name}."
        if not hasattr(backbone, "group_matcher"):
            raise ValueError(f"{type(backbone).__name__} does not say what its layers are, with timm's group_matcher")
        layers = group_parameters(backbone, backbone.group_matcher(coarse), reverse=True)
        numbers = {f"{prefix}{name}": number for name, number in layers.items()}
        return lambda name: numbers.get(name, math.inf)

    def get_classifier(self: Any) -> nn.ParameterList:
        """All parameters but the backbone's."""
        backbone = set(map(id, self.get_submodule(self.backbone_name).parameters()))
        return nn.ParameterList(one for one in self.parameters() if id(one) not in backbone)
