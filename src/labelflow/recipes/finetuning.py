"""Pretrained models on one's own images, one GPU: supervised and self-supervised weights of timm's.

`docs/howto/finetune.md` says when to use which. A layer's learning rate is `layer_decay` of the next one's.
"""

from labelflow.data import Data
from labelflow.engine import Training
from labelflow.recipes.base import FOLDER, Entry
from labelflow.tasks import Recipe

HALVES = (0.5, 0.5, 0.5)  # mean and spread that Google's ViTs expect
OURS = "a default for up to 50,000 images, with AdamW and 5e-5 for each 64 images of a batch; not tuned"
FROM_BEIT = "layer decay as BEiT fine-tunes weights that have been fine-tuned before (0.85); otherwise " + OURS
FROM_MAE = "layer decay as MAE and BEiT fine-tune ViT-B (0.65); otherwise " + OURS


def finetune() -> Recipe:
    """A pretrained DeiT-S on a folder of images: the place to start with a few thousand images and one GPU."""
    return Recipe(
        model="deit_small_patch16_224",
        init="pretrained",
        data=Data(source=FOLDER),
        training=Training(epochs=30, batch=128, micro_batch=64, lr=5e-5, lr_batch=0, min_lr=1e-6),
    )


def layered(model: str, layer_decay: float) -> Recipe:
    """A supervised transformer, whose first layers change least."""
    return finetune().change(model=model, epochs=50, lr=5e-5, lr_batch=64, layer_decay=layer_decay)


def vit(size: str) -> Recipe:
    """Google's ViTs, trained on ImageNet-21k with augmentation and regularisation, then on ImageNet-1k."""
    tag = {"small": "augreg_in21k_ft_in1k", "base": "augreg2_in21k_ft_in1k"}[size]
    return layered(f"vit_{size}_patch16_224.{tag}", 0.75).change(mean=HALVES, std=HALVES)


def swin() -> Recipe:
    """Swin-T, trained on ImageNet-1k."""
    return layered("swin_tiny_patch4_window7_224.ms_in1k", 0.85)


def dinov2() -> Recipe:
    """DINOv2's ViT-S, trained without labels at 518 pixels: here at 224, with positions interpolated."""
    return layered("vit_small_patch14_dinov2.lvd142m", 0.65).change(test_crop=1.0)


def dinov3() -> Recipe:
    """DINOv3's ViT-S, trained without labels: at its 256 pixels. Its weights have a licence of their own."""
    return layered("vit_small_patch16_dinov3.lvd1689m", 0.65).change(image_size=256, test_crop=1.0)


def probe(recipe: Recipe) -> Recipe:
    """A linear classifier on features that stay as they are: images are cropped and flipped, nothing else."""
    plain = recipe.change(target="plain", mixer="none", smoothing=0.0, drop_path=0.0, auto_augment="", color_jitter=0.0)
    return plain.change(erasing=0.0, freeze=("backbone",), layer_decay=1.0, lr=1e-3, lr_batch=0, weight_decay=0.0)


def both(stem: str, recipe: Recipe, about: str, source: str = "") -> list[Entry[Recipe]]:
    """With TL-Align, and with plain CutMix."""
    aligned = Entry(
        f"{stem}_tl_align", recipe, about, "" if stem == "finetune" else "finetune_tl_align", source, gpus=1
    )
    plain = recipe.change(target="plain")
    return [
        aligned,
        Entry(f"{stem}_cutmix", plain, "the same with plain CutMix", aligned.name, source, gpus=1),
    ]


ENTRIES: list[Entry[Recipe]] = [
    *both("finetune", finetune(), "a pretrained DeiT-S on your images"),
    *both("finetune_vit_small", vit("small"), "a supervised ViT-S on your images", OURS),
    *both("finetune_vit_base", vit("base"), "a supervised ViT-B on your images", OURS),
    *both("finetune_swin_tiny", swin(), "a supervised Swin-T on your images", FROM_BEIT),
    *both("finetune_dinov2_small", dinov2(), "DINOv2's ViT-S on your images", FROM_MAE),
    *both("finetune_dinov3_small", dinov3(), "DINOv3's ViT-S on your images", FROM_MAE),
    Entry(
        "finetune_dinov2_small_probe",
        probe(dinov2()),
        "a linear classifier on DINOv2's frozen ViT-S",
        "finetune_dinov2_small_cutmix",
        "not tuned",
        gpus=1,
    ),
]
