"""ImageNet-1K: DeiT with merged tokens (ToMe), with and without TL-Align."""

from labelflow.recipes.base import Entry
from labelflow.recipes.imagenet import DEIT, TL_ALIGN, aligned, deit
from labelflow.tasks import Recipe


def merging(size: str) -> Recipe:
    """DeiT's recipe from the start with 13 tokens fewer after each block: 197 become 41."""
    return deit(size).change(model=f"deit_{size}_patch16_224(merge_tokens=13)")


TOME = f"ToMe, arXiv 2210.09461, in the recipe of {DEIT}"
ENTRIES: list[Entry[Recipe]] = [
    Entry("deit_tiny_tome", merging("tiny"), "DeiT-T, merged tokens", "deit_tiny", TOME, "ToMe", 71.27),
    Entry("deit_small_tome", merging("small"), "DeiT-S, merged tokens", "deit_small", TOME, "ToMe", 79.36),
    *(
        Entry(
            f"deit_{size}_tome_tl_align",
            aligned(merging(size)),
            f"{title}, merged tokens, + TL-Align; beyond the papers",
            f"deit_{size}_tome",
            TL_ALIGN,
        )
        for size, title in (("tiny", "DeiT-T"), ("small", "DeiT-S"))
    ),
]
