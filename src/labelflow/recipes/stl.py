"""Self-emerging token labels (STL), both stages: ImageNet-1K with XCiT in the role of FAN, and one's own images."""

from labelflow.data import Data
from labelflow.engine import Training
from labelflow.recipes.base import IMAGENET, TEACHER, Entry
from labelflow.recipes.imagenet import MIXUP_CUTMIX
from labelflow.recipes.small import small_vit
from labelflow.tasks import Recipe

# Of FAN-Hybrid-T, -S, -B and -L: stochastic depth, batch, learning rate, warm-up
SETTINGS = {
    "tiny_12": (0.05, 1024, 2e-3, 5),
    "small_12": (0.25, 1024, 2e-3, 5),
    "small_24": (0.35, 2048, 4e-3, 10),
    "medium_24": (0.45, 2048, 4e-3, 10),
}


def labeler(size: str) -> Recipe:
    """Stage 1. timm has no FAN; XCiT, which attends between channels and ends with class attention, too, comes closest,
    at about as many parameters."""
    drop_path, batch, lr, warmup_epochs = SETTINGS[size]
    return Recipe(
        model=f"xcit_{size}_p16_224",
        drop_path=drop_path,
        mixer=MIXUP_CUTMIX,
        target="stl_labeler",
        data=Data(source=IMAGENET, erasing=0.3),
        training=Training(
            epochs=350, batch=batch, lr=lr, lr_batch=0, min_lr=1e-6, warmup_epochs=warmup_epochs, ema=0.99992
        ),
    )


def taught(recipe: Recipe) -> Recipe:
    """Stage 2: the same model, from scratch, on the tokens' labels that the first one draws."""
    return recipe.change(target="stl", teacher=TEACHER)


def small_labeler() -> Recipe:
    """A small ViT whose tokens learn to label: small_vit_cutmix with a token head."""
    return small_vit().change(target="stl_labeler")


def _entries(size: str, fan: str) -> list[Entry[Recipe]]:
    name, about = f"xcit_{size}_stl", f"XCiT-{size.capitalize().replace('_', '-')} in the role of FAN-{fan}"
    source = f"STL, released code, for FAN-Hybrid-{fan} (timm has no FAN; XCiT plays its role)"
    return [
        Entry(f"{name}_labeler", labeler(size), f"{about}: a labeller of tokens", source=source),
        Entry(name, taught(labeler(size)), f"{about}, with its labels", f"{name}_labeler", source),
    ]


ENTRIES: list[Entry[Recipe]] = [
    Entry(
        "small_vit_stl_labeler", small_labeler(), "a small ViT that learns to label tokens", "small_vit_cutmix", gpus=1
    ),
    Entry("small_vit_stl", taught(small_labeler()), "a small ViT with its labels", "small_vit_stl_labeler", gpus=1),
    *(entry for size, fan in zip(SETTINGS, "TSBL", strict=True) for entry in _entries(size, fan)),
]
