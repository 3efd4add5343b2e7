"""ImageNet-1K at higher resolutions: what Token Labeling's Tables 4 and 12 compare LV-ViT with."""

from labelflow.recipes.base import Entry
from labelflow.recipes.imagenet import DEIT, SWIN, deit, swin
from labelflow.recipes.token_labeling_others import T2T, t2t
from labelflow.tasks import Recipe


def deit_base_384() -> Recipe:
    """From the released weights, 30 epochs; drop-path is off, as the released script keeps the model in eval mode."""
    return deit("base").change(
        init="pretrained",
        drop_path=0.0,
        image_size=384,
        epochs=30,
        batch=512,
        micro_batch=32,
        lr=5e-6,
        min_lr=5e-6,
        weight_decay=1e-8,
    )


def swin_base_384() -> Recipe:
    """From the released weights, 30 epochs with windows of 12; the test images are resized without a crop."""
    recipe = swin("base")
    return recipe.change(
        model=f"{recipe.model}(window_size=12)",  # timm's own name for it comes with weights of 384 pixels
        init="pretrained",
        image_size=384,
        test_crop=1.0,
        epochs=30,
        warmup_epochs=5,
        micro_batch=64,
        lr=2e-5,
        warmup_lr=4e-8,
        min_lr=4e-7,
        weight_decay=1e-8,
    )


def t2t_vit_14_384() -> Recipe:
    return t2t(14).change(image_size=384)


def cait(size: str) -> Recipe:
    """Touvron et al., ICCV 2021: DeiT's recipe for 400 epochs, the same drop-path in all blocks, a hard teacher."""
    return deit("base").change(
        model=f"cait_{size}_384",
        drop_path={"s36": 0.2, "m36": 0.3}[size],
        drop_path_schedule="constant",
        teacher="regnety_160.deit_in1k",
        teacher_size=224,
        target="distill(kind='hard', alpha=0.5)",
        test_crop=1.0,
        epochs=400,
        micro_batch=64,
    )


def cait_finetuned(size: str, image_size: int, micro_batch: int) -> Recipe:
    """60 epochs, with a learning rate that is halved every 10."""
    return cait(size).change(
        init=f"runs/cait_{size}",
        image_size=image_size,
        teacher_size=image_size,
        epochs=60,
        batch=256,
        micro_batch=micro_batch,
        lr=5e-6,
        lr_batch=0,
        schedule="steps",
        steps=tuple(epoch / 60 for epoch in range(10, 60, 10)),
        step_factor=0.5,
    )


DEIT_384 = f"{DEIT}: its fine-tuning at 384"
SWIN_384 = f"{SWIN}: its fine-tuning at 384; batch not stated, 1024 as in its training"
T2T_384 = (
    f"{T2T}, which says that it was trained at 384; Token Labeling's Table 4 has it trained at 224, and no settings "
    "for fine-tuning were released: undecided"
)
CAIT = (
    "CaiT, arXiv 2103.17239, and its author on DeiT's issue tracker (#108, #104); how it was distilled was not "
    "released: DeiT's hard teacher with half of the loss, on the class token, is taken"
)
CAIT_FINETUNED = f"{CAIT}; settings are those of CaiT-M48 at 448 (#108), no others were released"

ENTRIES: list[Entry[Recipe]] = [
    Entry("t2t_vit_14_384", t2t_vit_14_384(), "T2T-ViT-14 at 384", "t2t_vit_14", T2T_384, "Table 4", 83.3),
    Entry("swin_base_384", swin_base_384(), "Swin-B at 384, fine-tuned", "swin_base", SWIN_384, "Table 4", 84.2),
    Entry("deit_base_384", deit_base_384(), "DeiT-B at 384, fine-tuned", "deit_base", DEIT_384, "Table 4", 83.1),
    Entry("cait_s36", cait("s36"), "CaiT-S36, distilled: the first stage", "deit_base", CAIT),
    Entry(
        "cait_s36_384",
        cait_finetuned("s36", 384, micro_batch=16),
        "CaiT-S36 at 384, distilled and fine-tuned",
        "cait_s36",
        CAIT_FINETUNED,
        "Tables 4, 12",
        85.4,
    ),
    Entry("cait_m36", cait("m36"), "CaiT-M36, distilled", "cait_s36", CAIT, "Table 4", 85.1),
    Entry(
        "cait_m36_448",
        cait_finetuned("m36", 448, micro_batch=8),
        "CaiT-M36 at 448, distilled and fine-tuned",
        "cait_m36",
        CAIT_FINETUNED,
        "Table 4",
        86.3,
    ),
]
