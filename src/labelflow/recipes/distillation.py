"""Distillation: DeiT's, with its teacher, and a small one for one's own images."""

from labelflow.recipes.base import TEACHER, Entry
from labelflow.recipes.imagenet import DEIT, aligned, deit
from labelflow.recipes.small import small_vit
from labelflow.tasks import Recipe


def distilled(size: str) -> Recipe:
    """DeiT's recipe with a distillation token and RegNetY-16GF, at 224 pixels as the student, as a hard teacher."""
    return deit(size).change(
        model=f"deit_{size}_distilled_patch16_224",
        teacher="regnety_160.deit_in1k",
        teacher_size=224,
        target="distill(kind='hard', alpha=0.5)",
    )


def distilled_aligned(size: str) -> Recipe:
    """The class token learns aligned labels, the distillation token from the teacher."""
    return aligned(distilled(size)).change(target="distill(kind='hard', alpha=0.5, target='tl_align')")


def small_vit_distill() -> Recipe:
    """A small ViT that learns from any trained classifier: a run on the same images, or an ImageNet model."""
    return small_vit().change(teacher=TEACHER, target="distill(kind='soft', alpha=0.5, tau=1.0, target='tl_align')")


ZOO = "DeiT, model zoo"
README = f"{DEIT} (README_deit.md: --distillation-type hard --teacher-model regnety_160)"
ENTRIES: list[Entry[Recipe]] = [
    Entry("deit_tiny_distilled", distilled("tiny"), "DeiT-T, distilled", "deit_tiny", README, ZOO, 74.5),
    Entry("deit_small_distilled", distilled("small"), "DeiT-S, distilled", "deit_small", README, ZOO, 81.2),
    Entry("deit_base_distilled", distilled("base"), "DeiT-B, distilled", "deit_base", README, ZOO, 83.4),
    Entry(
        "deit_small_distilled_tl_align",
        distilled_aligned("small"),
        "DeiT-S, distilled, + TL-Align; beyond the papers",
        "deit_small_distilled",
    ),
    Entry("small_vit_distill", small_vit_distill(), "a small ViT with a teacher", "small_vit_tl_align", gpus=1),
]
