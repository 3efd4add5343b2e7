"""ImageNet-1K: DeiT, PVT and Swin, with and without TL-Align (TL-Align, Tables 1, 2, 7, 8 and 9)."""

from labelflow.data import Data
from labelflow.engine import Training
from labelflow.recipes.base import IMAGENET, Entry
from labelflow.tasks import Recipe

CUTMIX = "cutmix(alpha=1.0)"
MIXUP_CUTMIX = "0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)"


def deit(size: str) -> Recipe:
    """Touvron et al., ICML 2021, as released: 300 epochs, MixUp or CutMix, repeated augmentation.

    Its loop sets the learning rate once an epoch, and runs an epoch behind its schedule.
    """
    return Recipe(
        model=f"deit_{size}_patch16_224",
        drop_path=0.1,
        mixer=MIXUP_CUTMIX,
        target="plain",
        data=Data(source=IMAGENET, repeats=3),
        training=Training(schedule_step="epoch", schedule_lag=1),
    )


def pvt(size: str) -> Recipe:
    """Wang et al., ICCV 2021: DeiT's recipe."""
    return deit("small").change(model=f"pvt_{size}")


def swin(size: str) -> Recipe:
    """Liu et al., ICCV 2021: 20 epochs of warm-up, a schedule by update, clipped gradients, no repeats."""
    return deit("small").change(
        model=f"swin_{size}_patch4_window7_224.ms_in1k",  # timm's default is pretrained on ImageNet-22K
        drop_path={"tiny": 0.2, "small": 0.3, "base": 0.5}[size],
        repeats=1,
        warmup_epochs=20,
        schedule_step="update",
        schedule_lag=0,
        clip=5.0,
    )


def aligned(recipe: Recipe) -> Recipe:
    """CutMix alone, with labels that follow the tokens: all that TL-Align changes (Section 4.1)."""
    return recipe.change(mixer=CUTMIX, target="tl_align")


def finetuned(recipe: Recipe) -> Recipe:
    """From the released weights, 40 epochs at a constant learning rate (TL-Align, Section 4.1)."""
    return aligned(recipe).change(
        init="pretrained", epochs=40, lr=1e-5, lr_batch=0, schedule="constant", warmup_epochs=0, weight_decay=1e-8
    )


def transmix_settings(recipe: Recipe) -> Recipe:
    """Chen et al., CVPR 2022, as TL-Align's Table 9 lists it: EMA, a longer warm-up, CutMix in 4 of 5 batches."""
    return recipe.change(
        mixer="0.2*mixup(alpha=0.8) + 0.8*cutmix(alpha=1.0)",
        cooldown_epochs=10,
        batch=256,
        micro_batch=64,
        lr=1e-3,
        lr_batch=0,
        warmup_epochs=20,
        schedule_lag=0,
        weight_decay=0.03,
        ema=0.99996,
        erasing=0.0,
        repeats=1,
        interpolation="random",
        test_crop=0.9,
    )


DEIT = "DeiT, arXiv 2012.12877, Table 9, and its released code"
PVT = "PVT, arXiv 2102.12122, and its released code"
SWIN = "Swin, arXiv 2103.14030, Appendix A2.1, and its released code"
TL_ALIGN = "TL-Align, arXiv 2210.06455, Section 4.1"
TRANSMIX = "TransMix, arXiv 2111.09833, as in TL-Align's Table 9"

_SMALL = deit("small")
_CUTMIX = _SMALL.change(mixer=CUTMIX)
_ALIGNED = aligned(_SMALL)

ENTRIES: list[Entry[Recipe]] = [
    Entry("deit_tiny", deit("tiny"), "DeiT-T", source=DEIT, paper="Table 1", aim=72.2),
    Entry("deit_tiny_tl_align", aligned(deit("tiny")), "DeiT-T + TL-Align", "deit_tiny", TL_ALIGN, "Table 1", 73.2),
    Entry("pvt_tiny", pvt("tiny"), "PVT-T", "deit_small", PVT, "Table 1", 75.1),
    Entry("pvt_tiny_tl_align", aligned(pvt("tiny")), "PVT-T + TL-Align", "pvt_tiny", TL_ALIGN, "Table 1", 75.5),
    Entry("deit_small", _SMALL, "DeiT-S, MixUp + CutMix", "", DEIT, "Tables 1, 7, 8, 9 (2)", 79.8),
    Entry("deit_small_tl_align", _ALIGNED, "DeiT-S + TL-Align", "deit_small", TL_ALIGN, "Tables 1, 2, 7, 8, 9", 80.6),
    Entry("pvt_small", pvt("small"), "PVT-S", "deit_small", PVT, "Table 1", 79.8),
    Entry("pvt_small_tl_align", aligned(pvt("small")), "PVT-S + TL-Align", "pvt_small", TL_ALIGN, "Table 1", 80.4),
    Entry("swin_tiny", swin("tiny"), "Swin-T", "deit_small", SWIN, "Table 1", 81.2),
    Entry("swin_tiny_tl_align", aligned(swin("tiny")), "Swin-T + TL-Align", "swin_tiny", TL_ALIGN, "Table 1", 81.4),
    Entry("swin_small", swin("small"), "Swin-S", "swin_tiny", SWIN, "Table 1", 83.0),
    Entry("swin_small_tl_align", aligned(swin("small")), "Swin-S + TL-Align", "swin_small", TL_ALIGN, "Table 1", 83.4),
    Entry("deit_base", deit("base"), "DeiT-B", "deit_small", DEIT, "Table 1", 81.8),
    Entry(
        "deit_base_tl_align",
        finetuned(deit("base")).change(drop_path=0.0),  # the public script fine-tunes with drop-path off
        "DeiT-B + TL-Align, fine-tuned",
        "deit_base",
        TL_ALIGN,
        "Table 1",
        82.3,
    ),
    Entry("swin_base", swin("base"), "Swin-B", "swin_tiny", SWIN, "Table 1", 83.5),
    Entry(
        "swin_base_tl_align",
        finetuned(swin("base")),
        "Swin-B + TL-Align, fine-tuned",
        "swin_base",
        TL_ALIGN,
        "Table 1",
        83.7,
    ),
    # The ways to train a DeiT-S
    Entry(
        "deit_small_vanilla", _SMALL.change(mixer="none"), "no mixing", "deit_small", DEIT, "Tables 2, 7, 9 (1)", 76.4
    ),
    Entry("deit_small_cutmix", _CUTMIX, "CutMix alone", "deit_small", DEIT, "Tables 2, 7, 9 (4)", 79.8),
    Entry(
        "deit_small_transmix",
        _CUTMIX.change(target="transmix"),
        "CutMix + TransMix",
        "deit_small_cutmix",
        TL_ALIGN,
        "Tables 2, 9",
        80.1,
    ),
    Entry(
        "deit_small_310",
        transmix_settings(_SMALL),
        "TransMix's settings without it",
        "deit_small",
        TRANSMIX,
        "Table 9 (3)",
        80.3,
        gpus=4,
    ),
    Entry(
        "deit_small_310_transmix",
        transmix_settings(_SMALL).change(target="transmix"),
        "TransMix's settings with it",
        "deit_small_310",
        TRANSMIX,
        "Table 9",
        80.7,
        gpus=4,
    ),
    # Mixing strategies
    Entry(
        "deit_small_mixup_cutmix_tl_align",
        _SMALL.change(target="tl_align"),
        "MixUp + CutMix + TL-Align",
        "deit_small",
        TL_ALIGN,
        "Table 7",
        80.2,
    ),
    Entry(
        "deit_small_random",
        _SMALL.change(mixer="random_patches(patch=16)"),
        "random patches",
        "deit_small",
        TL_ALIGN,
        "Table 7",
        79.7,
    ),
    Entry(
        "deit_small_random_tl_align",
        _SMALL.change(mixer="random_patches(patch=16)", target="tl_align"),
        "random patches + TL-Align",
        "deit_small_random",
        TL_ALIGN,
        "Table 7",
        80.2,
    ),
    Entry(
        "deit_small_block",
        _SMALL.change(mixer="block_patches(patch=16)"),
        "blocks of patches",
        "deit_small",
        TL_ALIGN,
        "Table 7",
        80.0,
    ),
    Entry(
        "deit_small_block_tl_align",
        _SMALL.change(mixer="block_patches(patch=16)", target="tl_align"),
        "blocks of patches + TL-Align",
        "deit_small_block",
        TL_ALIGN,
        "Table 7",
        80.3,
    ),
    # Ablations; the paper counts layers from 1
    Entry(
        "deit_small_tl_align_layer_12",
        _ALIGNED.change(target="tl_align(layers=[11])"),
        "the last layer only",
        "deit_small_tl_align",
        TL_ALIGN,
        "Table 8",
        80.1,
    ),
    Entry(
        "deit_small_tl_align_layers_2_4_6_8",
        _ALIGNED.change(target="tl_align(layers=[1, 3, 5, 7])"),
        "four layers only",
        "deit_small_tl_align",
        TL_ALIGN,
        "Table 8",
        80.2,
    ),
    Entry(
        "deit_small_tl_align_no_norm",
        _ALIGNED.change(target="tl_align(residual=False)"),
        "normalisation disabled",
        "deit_small_tl_align",
        TL_ALIGN,
        "Table 8",
        80.3,
    ),
]
