"""Recipes for one machine, from scratch: the sample world, and one's own images."""

from labelflow.data import Data
from labelflow.engine import Training
from labelflow.recipes.base import FOLDER, LABELS, Entry
from labelflow.tasks import Recipe

SWIN = "swin_tiny_patch4_window7_224(embed_dim=48, depths=(2, 2, 2, 2), num_heads=(2, 4, 8, 16), window_size=4)"
TINY_SWIN = "swin_tiny_patch4_window7_224(embed_dim=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), window_size=4)"
LVVIT = "embed_dim=128, depth=6, num_heads=4, stem=((7, 3, 3, 4), (2, 1, 1, 4)), stem_width=32"  # patches of 8 pixels


def small_vit() -> Recipe:
    """A ViT of width 128 and depth 6 at 64 pixels, from scratch, on a folder of images: minutes an epoch on a CPU."""
    return Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=128, depth=6, num_heads=4)",
        data=Data(source=FOLDER, image_size=64, scale=(0.35, 1.0), auto_augment="", color_jitter=0.0, erasing=0.0),
        training=Training(epochs=10, batch=128, micro_batch=64, lr=1e-3, lr_batch=128, warmup_epochs=2),
    )


def small_vit_growing() -> Recipe:
    """The same with images that grow from 32 to 64 pixels, and no mixing in the last of 12 epochs."""
    return small_vit().change(sizes=(32, 48, 64), epochs=12, mix_off_epoch=11)


def small_swin() -> Recipe:
    """A Swin of width 48 and depth 8, about as fast: a backbone for segmenters and detectors."""
    return small_vit().change(model=SWIN)


def quickstart() -> Recipe:
    """The first run: a few minutes on two cores, on scenes that are drawn on the way."""
    return small_vit().change(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=96, depth=4, num_heads=3)",
        source="world(train=4096, val=1000)",
        scale=(0.6, 1.0),
        test_crop=1.0,
        mixer="0.5*cutmix(alpha=1.0) + 0.5*none",  # half of the batches as they are: a short run learns faster
        lr=1.5e-3,
        epochs=8,
    )


def small_lvvit() -> Recipe:
    """An LV-ViT about as large as small_vit, with token labels: `labelflow annotate` makes them."""
    return small_vit().change(
        model=f"lvvit_t({LVVIT})",
        labels=LABELS,
        mixer="mixtoken(alpha=1.0, patch=8)",
        target="token_label(beta=0.5)",
    )


ENTRIES: list[Entry[Recipe]] = [
    Entry("quickstart", quickstart(), "the first run, on the sample world", "small_vit_tl_align", gpus=1),
    Entry("quickstart_cutmix", quickstart().change(target="plain"), "the same with plain CutMix", "quickstart", gpus=1),
    Entry("small_vit_tl_align", small_vit(), "a small ViT at 64 pixels, from scratch", gpus=1),
    Entry(
        "small_vit_cutmix",
        small_vit().change(target="plain"),
        "the same with plain CutMix",
        "small_vit_tl_align",
        gpus=1,
    ),
    Entry(
        "small_vit_growing",
        small_vit_growing(),
        "the same with images that grow from 32 to 64 pixels",
        "small_vit_tl_align",
        gpus=1,
    ),
    Entry("small_swin_tl_align", small_swin(), "a small Swin at 64 pixels, from scratch", "small_vit_tl_align", gpus=1),
    Entry("small_lvvit", small_lvvit(), "a small LV-ViT with token labels", "small_vit_tl_align", gpus=1),
    Entry(
        "small_lvvit_cutmix",
        small_vit().change(model=f"lvvit_t({LVVIT}, aux_head=False)", target="plain"),
        "the same with plain CutMix",
        "small_lvvit",
        gpus=1,
    ),
]
