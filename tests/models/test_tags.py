"""Names of timm's weights: the tag that a name stands for, and the data that it names."""

import re
from pathlib import Path

import pytest
import timm

from labelflow.models.tags import data_notice, exact_name, more_data

DOCS = Path(__file__).parents[2] / "docs" / "token-labels.md"
# Token Labeling, Section 4.2: EfficientNet-B3 to B8, NFNet-F6, ResNeSt-269; its Section 4.1 excludes JFT-300M
ANNOTATORS = [*(f"tf_efficientnet_b{size}" for size in range(3, 9)), "dm_nfnet_f6", "resnest269e"]


@pytest.mark.parametrize("name", ANNOTATORS)
def test_each_of_the_paper_s_annotators_has_weights_of_imagenet_1k_alone(name: str) -> None:
    exact = exact_name(name)
    assert exact in timm.list_pretrained(f"{name}.*")  # what timm loads, with its tag
    assert timm.get_pretrained_cfg(exact).hf_hub_id == timm.get_pretrained_cfg(name).hf_hub_id
    if exact.endswith(".ns_jft_in1k"):
        assert f"{exact} was trained on JFT-300M, beyond ImageNet-1k; on ImageNet-1k alone: " in data_notice(exact)
        assert f"{name}.ap_in1k" in data_notice(exact)
    else:
        assert data_notice(exact) == ""
    offered = re.search(rf"^\|.*`({name}\.\w+)`", DOCS.read_text(), re.MULTILINE)
    assert offered
    assert offered[1] in timm.list_pretrained(f"{name}.*")
    assert more_data(offered[1]) == ""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("convnext_base.fb_in22k_ft_in1k", "ImageNet-22k"),
        ("tf_efficientnetv2_s.in21k_ft_in1k", "ImageNet-21k"),
        ("resnet18.fb_swsl_ig1b_ft_in1k", "Instagram"),
        ("resnet18.fb_ssl_yfcc100m_ft_in1k", "YFCC100M"),
        ("regnety_160.swag_ft_in1k", "Instagram"),
        ("hrnet_w18_ssld.paddle_in1k", "unlabelled images of ImageNet-22k (SSLD)"),
        ("vit_base_patch16_clip_224.laion2b_ft_in12k_in1k", "image-text pairs and LAION and ImageNet-12k"),
        ("deit_small_patch16_224.fb_in1k", ""),
        ("resnet50(depth=3)", ""),
        ("inception_v3.tf_in1k", ""),
    ],
)
def test_data_beyond_imagenet_1k(name: str, data: str) -> None:
    assert more_data(name) == data
    assert bool(data_notice(name)) == bool(data)


def test_names_without_weights_or_with_a_tag_stay() -> None:
    for name in ("lvvit_s", "t2t_vit_14", "resnet50.a1_in1k(output_stride=16)", "no_such_model"):
        assert exact_name(name) == name
