"""The tags of timm's weights: which weights a name stands for, and what their tag says they were trained on."""

import timm

from labelflow.spec import parse

MORE = {  # data beyond ImageNet-1k, by how a word of a name begins
    "in12k": "ImageNet-12k",
    "in21k": "ImageNet-21k",
    "inw21k": "ImageNet-21k",
    "in22k": "ImageNet-22k",
    "ssld": "unlabelled images of ImageNet-22k (SSLD)",
    "jft": "JFT-300M",
    "ig1b": "Instagram",
    "swag": "Instagram",
    "seer": "Instagram",
    "yfcc": "YFCC100M",
    "laion": "LAION",
    "openai": "image-text pairs",
    "clip": "image-text pairs",
    "metaclip": "MetaCLIP",
    "mclip": "DataComp",
    "datacomp": "DataComp",
    "dfn": "DFN",
    "webli": "WebLI",
    "m30m": "Merged-30M",
    "m38m": "Merged-38M",
    "merged2b": "Merged-2B",
    "lvd": "LVD",
}


def exact_name(model: str) -> str:
    """A model with the tag of the weights that timm loads for it; as it is, where it has one, or timm has no weights.

    >>> exact_name("tf_efficientnet_b5"), exact_name("dm_nfnet_f6.dm_in1k"), exact_name("vit_tiny_patch16_224(depth=2)")
    ('tf_efficientnet_b5.ns_jft_in1k', 'dm_nfnet_f6.dm_in1k', 'vit_tiny_patch16_224.augreg_in21k_ft_in1k(depth=2)')
    """
    name = parse(model).name
    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) and "." not in name else None
    return model.replace(name, f"{name}.{cfg.tag}", 1) if cfg is not None and cfg.tag else model


def more_data(model: str) -> str:
    """What weights have seen beside ImageNet-1k, as far as their tag says it.

    >>> more_data("tf_efficientnet_b5.ns_jft_in1k"), more_data("vit_base_patch32_clip_224.laion2b_ft_in1k")
    ('JFT-300M', 'image-text pairs and LAION')
    """
    words = parse(model).name.replace(".", "_").split("_")  # a few say it before the dot, such as hrnet_w18_ssld
    found = [data for word in words for start, data in MORE.items() if word.startswith(start)]
    return " and ".join(dict.fromkeys(found))


def data_notice(model: str) -> str:
    """One line about weights that were trained on more than ImageNet-1k, and those of the same model that were not."""
    name, more = parse(model).name, more_data(model)
    if not more:
        return ""
    others = [other for other in timm.list_pretrained(f"{name.partition('.')[0]}.*") if _is_imagenet_alone(other)]
    instead = f"; on ImageNet-1k alone: {', '.join(others)}" if others else ""
    return f"{name} was trained on {more}, beyond ImageNet-1k{instead}"


def _is_imagenet_alone(model: str) -> bool:
    return "in1k" in model.partition(".")[2].split("_") and not more_data(model)
