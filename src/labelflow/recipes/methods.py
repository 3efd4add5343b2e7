"""Ways to train the same model on the same data: what a comparison puts side by side. One method, one line."""

from dataclasses import dataclass
from typing import Any

from labelflow.spec import build, known, parse, split
from labelflow.targets import TARGETS
from labelflow.tasks import Recipe


@dataclass(frozen=True)
class Method:
    """How images are mixed, and what the model is trained on. `{patch}` stands for a token's side in pixels."""

    name: str
    about: str
    mixer: str
    target: str = "plain"
    smoothing: float | None = None  # None: the recipe's
    dense: bool = False  # whether the target needs dense labels
    taught: bool = False  # whether it needs a teacher

    def of(self, recipe: Recipe, patch: int = 0) -> Recipe:
        """The recipe with this method; dense labels and a teacher stay only where they are used. patch, if known: a
        token's side."""
        mixer = self.mixer.format(patch=patch or token_side(recipe)) if "{patch}" in self.mixer else self.mixer
        smoothing = recipe.smoothing if self.smoothing is None else self.smoothing
        labels = recipe.data.labels if self.dense else ""
        teacher = recipe.teacher if self.taught or (self.dense and not labels) else ""
        return recipe.change(mixer=mixer, target=self.target, smoothing=smoothing, labels=labels, teacher=teacher)


MIXUP, CUTMIX = "mixup(alpha=0.8)", "cutmix(alpha=1.0)"
MIXUP_CUTMIX = f"0.5*{MIXUP} + 0.5*{CUTMIX}"

METHODS = {
    method.name: method
    for method in (
        Method("vanilla", "no mixing", "none"),
        Method("mixup", "MixUp", MIXUP),
        Method("cutmix", "CutMix", CUTMIX),
        Method("mixup_cutmix", "MixUp or CutMix", MIXUP_CUTMIX),
        Method("saliencymix", "SaliencyMix", "saliencymix(alpha=1.0)"),
        Method("attentive_cutmix", "Attentive-CutMix", "attentive_cutmix"),
        Method("puzzlemix", "Puzzle-Mix", "puzzlemix(alpha=1.0)"),
        Method("transmix", "CutMix + TransMix", CUTMIX, "transmix"),
        Method("tl_align", "CutMix + TL-Align", CUTMIX, "tl_align"),
        Method(
            "token_label",
            "MixToken + token labels",
            "mixtoken(alpha=1.0, patch={patch})",
            "token_label(beta=0.5)",
            dense=True,
        ),
        Method(
            "token_label_aligned",
            "MixToken + token labels that flow",
            "mixtoken(alpha=1.0, patch={patch})",
            "token_label_aligned(beta=0.5)",
            dense=True,
        ),
        Method(
            "token_label_given",
            "MixToken + token labels, the image's as given",
            "mixtoken(alpha=1.0, patch={patch})",
            "token_label(beta=0.5, image_label='given')",
            dense=True,
        ),
        Method(
            "token_label_aligned_given",
            "MixToken + token labels that flow, the image's as given",
            "mixtoken(alpha=1.0, patch={patch})",
            "token_label_aligned(beta=0.5, image_label='given')",
            dense=True,
        ),
        Method("relabel", "CutMix + ReLabel", CUTMIX, "relabel", dense=True),
        Method("tokenmix", "TokenMix", f"0.5*{MIXUP} + 0.5*tokenmix(patch={{patch}})", "token_mix", dense=True),
        Method("distill", "CutMix + a teacher", CUTMIX, "distill", taught=True),
        Method("distill_tl_align", "TL-Align + a teacher", CUTMIX, "distill(target='tl_align')", taught=True),
        Method("stl", "CutMix + self-emerging token labels", CUTMIX, "stl", taught=True),
        Method("smmix", "SMMix", f"0.5*{MIXUP} + 0.5*smmix", "sm_mix"),
        Method(
            "mixpro",
            "MixPro",
            f"0.25*{MIXUP} + 0.25*{CUTMIX} + 0.5*maskmix(patch={{patch}})",
            "pal",
            smoothing=0.0,
        ),
        Method("resizemix", "ResizeMix", "resizemix"),
        Method("recursivemix", "RecursiveMix", "recursivemix", "recursive_mix"),
        Method("guided_mixup", "GuidedMixup, by saliency", "0.5*guided_mixup + 0.5*none"),
        Method("guided_mixup_gradient", "GuidedMixup, by gradient", "0.8*guided_mixup(by='gradient') + 0.2*none"),
        # Mixing strategies with and without alignment (TL-Align, Table 7)
        Method("mixup_cutmix_tl_align", "MixUp or CutMix + TL-Align", MIXUP_CUTMIX, "tl_align"),
        Method("random", "random patches", "random_patches(patch={patch})"),
        Method("random_tl_align", "random patches + TL-Align", "random_patches(patch={patch})", "tl_align"),
        Method("block", "blocks of patches", "block_patches(patch={patch})"),
        Method("block_tl_align", "blocks of patches + TL-Align", "block_patches(patch={patch})", "tl_align"),
        # Ablations (TL-Align, Table 8)
        Method("tl_align_last", "TL-Align, the last layer only", CUTMIX, "tl_align(layers=[-1])"),
        Method("tl_align_no_norm", "TL-Align, no residual and no norm", CUTMIX, "tl_align(residual=False)"),
    )
}


def find_method(text: str) -> Method:
    """A method by its name, or one's own: `NAME=MIXER/TARGET`.

    >>> find_method("grid=cutmix(grid=8)/tl_align").mixer
    'cutmix(grid=8)'
    """
    name, *rest = split(text, "=")
    if not rest:
        return METHODS[known(text, METHODS, "method")]
    mixer, *target = split("=".join(rest), "/")
    if len(target) != 1 or not name.isidentifier():
        raise ValueError(
            f"{text!r} is not of the form NAME=MIXER/TARGET, such as grid=cutmix(grid=8)/tl_align; NAME is one word"
        )
    built = build(target[0], TARGETS, "target")
    return Method(name, "=".join(rest), mixer, target[0], dense=built.dense, taught=bool(built.teacher))


def token_side(recipe: Recipe) -> int:
    """The side of the recipe's tokens in pixels, where they leave the patch embedding."""
    import torch

    from labelflow.models.create import create
    from labelflow.tokens import embedding_of

    name, given = parse(recipe.model)
    with torch.device("meta"):
        embedding: Any = embedding_of(create(name, **given))
    side = getattr(embedding, "patch_size", None)
    if side is None:
        raise ValueError(f"{recipe.model} does not say how large its tokens are; write the mixer with its patch=")
    return int(side[0] if isinstance(side, (tuple, list)) else side)
