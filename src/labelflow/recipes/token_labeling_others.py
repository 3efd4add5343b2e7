"""Token labels for other models than LV-ViT (Token Labeling, Figure 5 and Table 11).

No settings were released for these: Table 7's are taken, as for "our ImageNet classification experiments".
"""

from labelflow.recipes.base import Entry
from labelflow.recipes.imagenet import CUTMIX
from labelflow.recipes.token_labeling import PAPER, standard, token_labeling
from labelflow.tasks import Recipe


def t2t(depth: int) -> Recipe:
    """Yuan et al., ICCV 2021, as released, for 8 GPUs: the recipe that token labels are compared with."""
    small = depth < 14
    return standard(f"t2t_vit_{depth}").change(
        batch=512,
        micro_batch=64,
        lr=1e-3 if small else 5e-4,
        lr_batch=0,
        warmup_epochs=10,
        weight_decay=0.03 if small else 0.05 if depth == 14 else 0.065,
        ema=0.99996,
    )


def mixer(size: str) -> Recipe:
    return standard(f"mixer_{size}16_224").change(test_crop=0.875)


def resnest50() -> Recipe:
    """Without drop-path, which timm's blocks apply to the shortcut."""
    return standard("resnest50d").change(drop_path=0.0, test_crop=0.875)


def labelled(recipe: Recipe) -> Recipe:
    """Table 7's column of token labels for a model."""
    return token_labeling(recipe.model).change(drop_path=recipe.drop_path, test_crop=recipe.data.test_crop)


T2T = "T2T-ViT, arXiv 2101.11986, and its released code"


def _deit(size: str) -> Entry[Recipe]:
    recipe, name = token_labeling(f"deit_{size}_patch16_224"), f"deit_{size}_token_label"
    return Entry(name, recipe, f"DeiT-{size[0].upper()} + token labels", f"deit_{size}", PAPER, "Figure 5")


def _t2t(depth: int) -> list[Entry[Recipe]]:
    recipe, name, title = t2t(depth), f"t2t_vit_{depth}", f"T2T-ViT-{depth}"
    paper, top1 = ("Table 4, Figure 5", 81.5) if depth == 14 else ("Figure 5", None)
    parent = "" if depth == 14 else "t2t_vit_14"
    return [
        Entry(name, recipe, title, parent, T2T, paper, top1),
        Entry(f"{name}_token_label", labelled(recipe), f"{title} + token labels", name, PAPER, "Figure 5"),
    ]


def _mixer(size: str, plain: float, with_labels: float) -> list[Entry[Recipe]]:
    recipe, name, title = mixer(size), f"mixer_{size}16", f"Mixer-{size.upper()}/16"
    return [
        Entry(name, recipe, title, "lvvit_s_standard", PAPER, "Table 11", plain),
        Entry(f"{name}_token_label", labelled(recipe), f"{title} + token labels", name, PAPER, "Table 11", with_labels),
    ]


ENTRIES: list[Entry[Recipe]] = [
    *map(_deit, ("tiny", "small", "base")),
    *(entry for depth in (7, 12, 14, 19, 24) for entry in _t2t(depth)),
    *_mixer("s", 75.6, 76.1),
    *_mixer("b", 78.3, 79.5),
    *_mixer("l", 77.7, 80.1),
    Entry("resnest50", resnest50(), "ResNeSt-50", "lvvit_s_standard", PAPER, "Table 11", 80.9),
    Entry(
        "resnest50_token_label",
        labelled(resnest50()).change(mixer=CUTMIX),  # it has no patch embedding after which MixToken could mix
        "ResNeSt-50 + token labels, CutMix",
        "resnest50",
        PAPER,
        "Table 11",
        81.5,
    ),
]
