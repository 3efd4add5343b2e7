"""ImageNet's classes: their numbers in WordNet, and what people call them."""

from collections.abc import Sequence
from functools import cache

from timm.data import ImageNetInfo


@cache
def _imagenet() -> ImageNetInfo:
    return ImageNetInfo()


@cache
def imagenet_classes() -> tuple[str, ...]:
    """WordNet's numbers of the thousand classes, in the order of every ImageNet model."""
    return tuple(_imagenet().label_names())


def wordnet_names(classes: Sequence[str]) -> tuple[str, ...]:
    """ImageNet's thousand classes under WordNet's numbers, where they come as descriptions ("tench, Tinca tinca", as
    Hugging Face has them) or as numbers (WebDataset); others as they are."""
    if len(classes) == len(imagenet_classes()):
        described = zip(classes, _imagenet().label_descriptions(), strict=True)
        alike = sum(own.lower() == other.lower() for own, other in described)  # some differ here and there
        if alike > 0.95 * len(classes) or list(classes) == [str(place) for place in range(len(classes))]:
            return imagenet_classes()
    return tuple(classes)


def title(name: str) -> str:
    """What people call a class: ImageNet's have WordNet's numbers.

    >>> title("n01440764"), title("my cats")
    ('tench', 'my cats')
    """
    known = name[1:].isdigit() and name in imagenet_classes()
    return _imagenet().label_name_to_description(name).split(",")[0] if known else name
