"""Detection and instance segmentation: COCO (TL-Align, Table 4), and one's own images."""

from labelflow.engine import Training
from labelflow.recipes.base import COCO, FOLDER, Entry
from labelflow.recipes.imagenet import swin
from labelflow.recipes.small import SWIN, TINY_SWIN
from labelflow.tasks import DetectRecipe
from labelflow.tasks.detect.settings import DetectData, Sizes


def cascade_swin(size: str, init: str) -> DetectRecipe:
    """The 3× schedule: 36 epochs of multi-scale training, the rate divided by ten after 27 and 33 (SwinDet)."""
    return DetectRecipe(
        backbone=swin(size).model,
        init=init,
        drop_path={"tiny": 0.2, "small": 0.2, "base": 0.3}[size],
        data=DetectData(source=COCO, bad_objects="drop"),  # two of train2017 have no area
        training=Training(
            epochs=36,
            batch=16,
            micro_batch=2,
            lr=1e-4,
            lr_batch=0,
            schedule="steps",
            warmup_epochs=0,
            warmup_updates=500,
            warmup_lr=1e-7,
            weight_decay=0.05,
            exempt="norms",
        ),
    )


def small() -> DetectRecipe:
    """The Swin of small_swin at 128 pixels with small heads, from scratch: a minute or two an epoch on a CPU."""
    return DetectRecipe(
        backbone=SWIN,
        drop_path=0.0,
        short_side=128,
        long_side=224,
        sizes=Sizes(channels=32, hidden=64, samples=16, proposals=32),
        data=DetectData(source=FOLDER, sides=(112, 128, 144), longest=256, crop_chance=0.0),
        training=Training(
            epochs=60, batch=8, micro_batch=8, lr=1e-3, lr_batch=0, warmup_epochs=2, clip=5.0, eval_epochs=5
        ),
    )


def quickstart() -> DetectRecipe:
    """The first run: some minutes on two cores, on scenes that are drawn on the way."""
    return small().change(
        backbone=TINY_SWIN,
        source="world(train=1024, val=100, objects=2, size=96)",
        sides=(96,),
        short_side=96,
        epochs=4,
        warmup_epochs=0,
        warmup_updates=30,
        lr=2e-3,
        eval_epochs=1,
    )


def finetune() -> DetectRecipe:
    """A pretrained Swin-T: the place to start with a few hundred annotated images and one GPU."""
    return cascade_swin("tiny", "pretrained").change(
        source=FOLDER, epochs=24, batch=4, micro_batch=4, warmup_updates=100
    )


SWINDET = "Swin, arXiv 2103.14030, Appendix A2.2, and its released configuration"

# size: box and mask AP, without and with TL-Align
TABLE_4 = {
    "tiny": ((50.4, 43.7), (50.5, 43.8)),
    "small": ((51.9, 45.0), (52.2, 45.2)),
    "base": ((51.9, 45.0), (52.3, 45.3)),
}


def _table_4(size: str, *numbers: tuple[float, float]) -> list[Entry[DetectRecipe]]:
    name, title, paper = f"cascade_swin_{size}", f"Cascade Mask R-CNN on Swin-{size[0].upper()}", "TL-Align, Table 4"
    from_run = cascade_swin(size, f"runs/swin_{size}_tl_align")
    plain, with_tl_align = (dict(zip(("box AP", "mask AP"), row, strict=True)) for row in numbers)
    return [
        Entry(name, cascade_swin(size, "pretrained"), title, "", SWINDET, paper, plain),
        Entry(f"{name}_tl_align", from_run, f"{title} + TL-Align", name, SWINDET, paper, with_tl_align),
    ]


ENTRIES: list[Entry[DetectRecipe]] = [
    Entry("detect_quickstart", quickstart(), "the first detector, on the sample world", "detect_small", gpus=1),
    Entry("detect_small", small(), "a small Swin and Cascade Mask R-CNN at 128 pixels, from scratch", gpus=1),
    Entry("detect_finetune", finetune(), "a pretrained Swin-T with Cascade Mask R-CNN on your images", gpus=1),
    *(entry for size, numbers in TABLE_4.items() for entry in _table_4(size, *numbers)),
]
