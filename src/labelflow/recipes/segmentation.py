"""Semantic segmentation: ADE20K (TL-Align, Table 3; Token Labeling, Tables 5 and 6), and one's own images."""

from labelflow.engine import Training
from labelflow.recipes.base import ADE20K, FOLDER, Entry
from labelflow.recipes.imagenet import swin
from labelflow.recipes.small import SWIN, TINY_SWIN
from labelflow.tasks import SegmentRecipe
from labelflow.tasks.segment.settings import SegmentData


def ade20k(backbone: str, init: str) -> SegmentRecipe:
    """160,000 updates of 16 crops of 512 pixels; a warm-up, then a line down to zero (SwinSeg)."""
    return SegmentRecipe(
        backbone=backbone,
        init=init,
        data=SegmentData(source=ADE20K),
        training=Training(
            epochs=0,
            updates=160_000,
            batch=16,
            micro_batch=2,
            lr=6e-5,
            lr_batch=0,
            min_lr=0.0,
            schedule="linear",
            warmup_epochs=0,
            warmup_updates=1500,
            warmup_lr=6e-11,
            weight_decay=0.01,
            exempt="norms",
            eval_epochs=13,  # of 1,263 updates
        ),
    )


def upernet_deit(init: str) -> SegmentRecipe:
    """DeiT-S with the multi-level neck (mmsegmentation)."""
    return ade20k("deit_small_patch16_224", init)


def upernet_swin(size: str, init: str) -> SegmentRecipe:
    return ade20k(swin(size).model, init).change(drop_path=0.3)


def upernet_lvvit(size: str, init: str) -> SegmentRecipe:
    """LV-ViT with its side layers: the paper's least learning rate, sliding windows, all weights decay."""
    backbone = "lvvit_l(img_size=448)" if size == "l" else f"lvvit_{size}"
    return ade20k(backbone, init).change(
        drop_path={"s": 0.1, "m": 0.2, "l": 0.5}[size], window=512, stride=341, min_lr=5e-6, exempt="nothing"
    )


def fcn_lvvit(init: str) -> SegmentRecipe:
    return upernet_lvvit("s", init).change(head="fcn")


def small() -> SegmentRecipe:
    """The Swin of small_swin at 128 pixels, with a small UperNet: a minute an epoch on a CPU."""
    return SegmentRecipe(
        backbone=SWIN,
        width=48,
        data=SegmentData(source=FOLDER, crop=128, short=128, long=512, ratio=(0.75, 1.5)),
        training=Training(
            epochs=30, batch=16, micro_batch=16, lr=1e-3, lr_batch=0, min_lr=1e-5, schedule="linear", warmup_epochs=2
        ),
    )


def quickstart() -> SegmentRecipe:
    """The first run: a few minutes on two cores, on scenes that are drawn on the way."""
    return small().change(
        backbone=TINY_SWIN,
        drop_path=0.0,
        source="world(train=2048, val=200, objects=2)",
        crop=64,
        short=64,
        ratio=(1.0, 1.0),
        most=1.0,
        photometric=False,
        lr=2e-3,
        epochs=10,
        warmup_epochs=0,
        warmup_updates=50,
        eval_epochs=2,
    )


def finetune() -> SegmentRecipe:
    """A pretrained Swin-T with UperNet: the place to start with a few hundred masks and one GPU."""
    return upernet_swin("tiny", "pretrained").change(
        source=FOLDER, updates=0, epochs=50, batch=8, micro_batch=8, warmup_updates=0, warmup_epochs=2, eval_epochs=1
    )


SWINSEG = "Swin, arXiv 2103.14030, Appendix A2.3, and its released configuration"
MMSEG = "mmsegmentation's configuration of DeiT-S with the multi-level neck"
LVVIT = "Token Labeling, arXiv 2104.10858, Section 4.4, and its released configuration"

MIOU, MULTI_SCALE, MEAN_ACCURACY = "mIoU", "mIoU (MS)", "mAcc"
PIXELS, PIXELS_MULTI_SCALE = "aAcc", "aAcc (MS)"

# backbone: mIoU at one scale and at several, and mean accuracy, without and with TL-Align
TABLE_3 = {
    "deit_small": ((43.8, 45.1, 55.2), (44.5, 45.7, 55.5)),
    "swin_tiny": ((44.4, 45.8, 55.6), (44.7, 46.5, 56.4)),
    "swin_small": ((47.6, 49.5, 58.8), (48.0, 49.7, 59.5)),
    "swin_base": ((48.1, 49.7, 59.1), (48.3, 50.1, 59.7)),
}
TITLES = {"deit_small": "DeiT-S", "swin_tiny": "Swin-T", "swin_small": "Swin-S", "swin_base": "Swin-B"}


def _table_3(name: str, *numbers: tuple[float, ...]) -> list[Entry[SegmentRecipe]]:
    size, title = name.partition("_")[2], f"UperNet on {TITLES[name]}"
    inits = ("pretrained", f"runs/{name}_tl_align")
    recipes = [upernet_deit(init) if name == "deit_small" else upernet_swin(size, init) for init in inits]
    source = MMSEG if name == "deit_small" else SWINSEG
    own, paper = f"upernet_{name}", "TL-Align, Table 3"
    metrics = (MIOU, MULTI_SCALE, MEAN_ACCURACY)
    plain, with_tl_align = (dict(zip(metrics, row, strict=True)) for row in numbers)
    return [
        Entry(own, recipes[0], title, "", source, paper, plain),
        Entry(f"{own}_tl_align", recipes[1], f"{title} + TL-Align", own, source, paper, with_tl_align),
    ]


def _lvvit(name: str, recipe: SegmentRecipe, about: str, paper: str, numbers: dict[str, float]) -> Entry[SegmentRecipe]:
    parent = "" if name == "upernet_lvvit_s" else "upernet_lvvit_s"
    return Entry(name, recipe, about, parent, LVVIT, f"Token Labeling, {paper}", numbers)


def _table_5(*numbers: float) -> dict[str, float]:
    """Its columns; those of Table 6 are the last two."""
    return dict(zip((MIOU, PIXELS, MULTI_SCALE, PIXELS_MULTI_SCALE)[-len(numbers) :], numbers, strict=True))


PLAIN = "runs/lvvit_s_standard"

ENTRIES: list[Entry[SegmentRecipe]] = [
    Entry("segment_quickstart", quickstart(), "the first segmenter, on the sample world", "segment_small", gpus=1),
    Entry("segment_small", small(), "a small Swin with UperNet at 128 pixels, from scratch", gpus=1),
    Entry("segment_finetune", finetune(), "a pretrained Swin-T with UperNet on your images and masks", gpus=1),
    *(entry for name, numbers in TABLE_3.items() for entry in _table_3(name, *numbers)),
    _lvvit(
        "upernet_lvvit_s",
        upernet_lvvit("s", "runs/lvvit_s"),
        "UperNet on LV-ViT-S",
        "Tables 5, 6",
        _table_5(47.9, 82.6, 48.6, 83.1),
    ),
    _lvvit(
        "upernet_lvvit_s_standard",
        upernet_lvvit("s", PLAIN),
        "the same without token labels",
        "Table 5",
        _table_5(46.5, 82.1, 47.6, 82.7),
    ),
    _lvvit(
        "fcn_lvvit_s",
        fcn_lvvit("runs/lvvit_s"),
        "FCN on LV-ViT-S",
        "Tables 5, 6",
        _table_5(47.2, 82.4, 48.4, 83.0),
    ),
    _lvvit(
        "fcn_lvvit_s_standard",
        fcn_lvvit(PLAIN),
        "the same without token labels",
        "Table 5",
        _table_5(46.1, 81.9, 47.3, 82.6),
    ),
    _lvvit(
        "upernet_lvvit_m",
        upernet_lvvit("m", "runs/lvvit_m"),
        "UperNet on LV-ViT-M",
        "Table 6",
        _table_5(50.6, 83.5),
    ),
    _lvvit(
        "upernet_lvvit_l",
        upernet_lvvit("l", "runs/lvvit_l_448"),
        "UperNet on LV-ViT-L",
        "Table 6",
        _table_5(51.8, 84.1),
    ),
]
