"""ImageNet-1K: other ways to mix, with a DeiT (TL-Align, Table 2), and three that came after the papers."""

from labelflow.recipes.base import LABELS, Entry
from labelflow.recipes.imagenet import DEIT, deit, swin
from labelflow.recipes.methods import METHODS
from labelflow.tasks import Recipe


def rival(method: str, size: str = "small") -> Recipe:
    """DeiT's recipe under another method: what TL-Align's Table 2 compares."""
    return METHODS[method].of(deit(size).change(labels=LABELS), patch=16)


def mixpro(size: str) -> Recipe:
    """Zhao et al., ICLR 2023, as released: a DeiT with patches of 14 pixels, trained as Swins are."""
    model = f"deit_{size}_patch16_224(patch_size=14)"
    return METHODS["mixpro"].of(swin("tiny").change(model=model, drop_path=0.1), patch=14)


SALIENCYMIX = f"SaliencyMix, arXiv 2006.01791, in the recipe of {DEIT}"
ATTENTIVE = f"Attentive CutMix, arXiv 2003.13048, in the recipe of {DEIT}"
PUZZLEMIX = f"Puzzle Mix, arXiv 2009.06962, in the recipe of {DEIT}"
TOKENMIX = f"TokenMix, arXiv 2207.08409, in the recipe of {DEIT}"
SMMIX = f"SMMix, arXiv 2212.12977, in the recipe of {DEIT}"
MIXPRO = "MixPro, arXiv 2304.12043, and its released code"

ENTRIES: list[Entry[Recipe]] = [
    Entry("deit_small_puzzlemix", rival("puzzlemix"), "Puzzle-Mix", "deit_small_cutmix", PUZZLEMIX, "Table 2", 79.8),
    Entry(
        "deit_small_saliencymix", rival("saliencymix"), "SaliencyMix", "deit_small_cutmix", SALIENCYMIX, "Table 2", 79.2
    ),
    Entry(
        "deit_small_attentive_cutmix",
        rival("attentive_cutmix"),
        "Attentive-CutMix",
        "deit_small_cutmix",
        ATTENTIVE,
        "Table 2",
        77.5,
    ),
]

# Rows of their own papers.
LATER: list[Entry[Recipe]] = [
    *(
        Entry(
            f"deit_{size}_tokenmix",
            rival("tokenmix", size),
            f"{title} + TokenMix",
            f"deit_{size}",
            TOKENMIX,
            "TokenMix",
            top1,
        )
        for size, title, top1 in (("tiny", "DeiT-T", 73.2), ("small", "DeiT-S", 80.8), ("base", "DeiT-B", 82.9))
    ),
    *(
        Entry(f"deit_{size}_smmix", rival("smmix", size), f"{title} + SMMix", f"deit_{size}", SMMIX, "SMMix", top1)
        for size, title, top1 in (("tiny", "DeiT-T", 73.6), ("small", "DeiT-S", 81.1))
    ),
    Entry("deit_tiny_mixpro", mixpro("tiny"), "DeiT-T + MixPro", "deit_tiny", MIXPRO, "MixPro", 73.8),
]
