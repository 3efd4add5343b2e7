"""DeiT III on ImageNet-1K (Touvron et al., ECCV 2022): ViT-S at 224 pixels, ViT-B and ViT-L at 192 and then at 224."""

from labelflow.recipes.base import Entry
from labelflow.recipes.imagenet import aligned, deit
from labelflow.tasks import Recipe

DROP_PATH = {"small": 0.05, "base": 0.2, "large": 0.45}


def deit3(size: str) -> Recipe:
    """800 epochs with LAMB, 3-Augment, and labels that are 0 or 1: both classes of a mixed image count in full.

    timm's LAMB clips gradients to a norm of 1 by itself, as apex's does.
    """
    return deit(size).change(
        model=f"deit3_{size}_patch16_224(init_values=0.0001)",  # LayerScale's; timm's own default is 1e-6
        drop_path=DROP_PATH[size],
        drop_path_schedule="constant",
        loss="bce(threshold=0)",
        smoothing=0.0,
        image_size=224 if size == "small" else 192,
        auto_augment="3a",
        color_jitter=0.3,
        erasing=0.0,
        test_crop=1.0,
        optimizer="lamb",
        lr=4e-3 if size == "small" else 3e-3,
        lr_batch=0,
        epochs=800,
        batch=2048,
        micro_batch=64 if size == "large" else 256,
    )


def aligned3(recipe: Recipe) -> Recipe:
    """CutMix alone with TL-Align; binary labels stay soft, since labels of 0 and 1 have no share to align."""
    return aligned(recipe).change(loss="bce" if recipe.loss.startswith("bce") else recipe.loss)


def at_224(recipe: Recipe, run: str) -> Recipe:
    """20 epochs from a run at 192 pixels, with AdamW, cross-entropy and RandAugment."""
    return recipe.change(
        init=run,
        loss="ce",
        smoothing=0.1,
        image_size=224,
        auto_augment="rand-m9-mstd0.5-inc1",
        repeats=1,
        optimizer="adamw",
        lr=1e-5,
        weight_decay=0.1,
        epochs=20,
        batch=512,
        micro_batch=64,
    )


SOURCE = "DeiT III, arXiv 2204.07118, and its released commands"
ALIGNED = f"{SOURCE}; TL-Align, arXiv 2210.06455, Section 4.1"
RELEASED = "released models"


def _two_stages(size: str, top1: float) -> list[Entry[Recipe]]:
    name, title = f"deit3_{size}", f"DeiT III, ViT-{size[0].upper()}"
    recipe, with_tl_align = deit3(size), f"deit3_{size}_tl_align"
    later, about = aligned3(at_224(recipe, f"runs/{with_tl_align}")), f"{title} + TL-Align at 192, then 224 pixels"
    return [
        Entry(name, recipe, f"{title} at 192 pixels, the first stage", "deit3_small", SOURCE),
        Entry(f"{name}_224", at_224(recipe, f"runs/{name}"), f"{title} at 224 pixels", name, SOURCE, RELEASED, top1),
        Entry(with_tl_align, aligned3(recipe), f"{title} + TL-Align at 192 pixels", name, ALIGNED),
        Entry(f"{with_tl_align}_224", later, about, f"{name}_224", ALIGNED),
    ]


ENTRIES: list[Entry[Recipe]] = [
    Entry("deit3_small", deit3("small"), "DeiT III, ViT-S", "deit_small", SOURCE, RELEASED, 81.4),
    Entry("deit3_small_tl_align", aligned3(deit3("small")), "DeiT III, ViT-S + TL-Align", "deit3_small", ALIGNED),
    *_two_stages("base", 83.8),
    *_two_stages("large", 84.9),
]
