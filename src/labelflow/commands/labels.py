"""`labelflow labels COMMAND …`: inspect, verify, import, export and draw dense labels."""

import json
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional

from labelflow.data.settings import Columns, Data
from labelflow.files import named_errors

if TYPE_CHECKING:
    from labelflow.engine.progress import Counted


def inspect(labels: Positional[Path], as_json: bool = False) -> None:
    """Describe a store of labels.

    Args:
        labels: The folder of the labels.
        as_json: Print JSON, for programs.
    """
    from labelflow.labels import Store

    store = Store(labels)
    if as_json:
        print(json.dumps(store.facts()))
        return
    for name, value in store.summary().items():
        print(f"{name:15} {value}")


def verify(labels: Positional[Path]) -> None:
    """Read all labels and compare them with their checksums.

    Args:
        labels: The folder of the labels.
    """
    from labelflow.engine.progress import Counted
    from labelflow.labels import Store

    store = Store(labels)
    with Counted("verifying", "parts", 100) as progress:
        problems = store.verify(_percents(progress))
    if problems:
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ValueError(problems[0] + more)
    print(f"{labels} is intact: {len(store)} label maps, checksum {store.checksum[:16]}")


def import_labels(
    tree: Positional[Path], out: Positional[Path], classes: str = "imagenet", seen: str = "whole", resume: bool = False
) -> None:
    """Labels from a tree of CLASS/NAME.pt files, as Token Labeling and ReLabel released them.

    Args:
        tree: The folder of the tree.
        out: The folder of the labels.
        classes: imagenet, or a folder of images whose class folders name the classes.
        seen: What of an image the maps show: whole, as ReLabel's; center(0.956), as Token Labeling's generator cropped.
        resume: Continue with the labels in that folder: what is missing or damaged is imported.
    """
    from timm.data import ImageNetInfo

    from labelflow.data import open_source
    from labelflow.engine.progress import Counted
    from labelflow.labels import import_tree

    if classes == "imagenet":
        names = ImageNetInfo().label_names()
    else:
        names = list(open_source(Data(source=classes), "train").classes)
    with Counted("importing", "parts", 100) as progress:
        store = import_tree(tree, out, names, str(tree), seen, resume, _percents(progress), progress.say)
    print(f"{out} holds {len(store)} label maps of {store.manifest.grid[0]}×{store.manifest.grid[1]} cells")


def export_labels(labels: Positional[Path], out: Positional[Path], resume: bool = False) -> None:
    """Write labels as a tree of CLASS/NAME.pt files.

    Args:
        labels: The folder of the labels.
        out: The folder of the tree.
        resume: Continue with an unfinished tree.
    """
    from timm.data import ImageNetInfo

    from labelflow.labels import Store, export_tree

    store = Store(labels)
    print(f"{export_tree(store, out, resume)} files in {out}")
    if list(store.manifest.classes) != ImageNetInfo().label_names():
        again = f"labelflow labels import {quote(str(out))} LABELS --classes DATA"
        print(f"  to import it   {again}  (DATA: images in one folder per class)")


def draw(
    labels: Positional[Path],
    data: Positional[str],
    out: Path = Path("labels.png"),
    count: int = 6,
    split: str = "train",
    root: str = "data",
    train_split: str = "train",
    val_split: str = "val",
    val_fraction: float = 0.1,
    split_seed: int = 0,
    columns: Annotated[Columns, OmitArgPrefixes] = Columns(),  # noqa: B008 it is frozen
) -> None:
    """Draw labels over some images.

    Args:
        labels: The folder of the labels.
        data: The annotated data.
        out: The image file.
        count: How many images.
        split: The part of the data, train or val.
        root: The folder for downloads of torchvision and Hugging Face, or that of wds shards.
        train_split: What Hugging Face calls the part to train on, or its wds shards; as for annotate.
        val_split: What Hugging Face calls the part to evaluate on, or its wds shards; as for annotate.
        val_fraction: The part of a folder without train and val that is set aside, as for annotate.
        split_seed: Chooses which files are set aside; as for annotate.
        columns: Of a table, as for annotate.
    """
    if split not in ("train", "val"):
        raise ValueError(f"split must be train or val, not {split!r}")
    from labelflow.analysis.label_maps import label_picture
    from labelflow.data import open_map_style
    from labelflow.labels import Store
    from labelflow.tasks.checks import check_classes

    loading = Data(
        source=data,
        root=root,
        train_split=train_split,
        val_split=val_split,
        val_fraction=val_fraction,
        split_seed=split_seed,
        columns=columns,
    )
    source = open_map_style(loading, split)
    store = Store(labels)
    check_classes(list(source.classes), list(store.manifest.classes), str(labels))
    picture = label_picture(store, source, count)
    out.parent.mkdir(parents=True, exist_ok=True)
    with named_errors(out):
        picture.save(out)
    print(out)


def _percents(progress: "Counted") -> Callable[[float], None]:
    """From fractions to percent."""

    def advance(part: float) -> None:
        more = round(100 * part) - progress.done
        if more:
            progress.advance(more)

    return advance


LABEL_COMMANDS: dict[str, Callable[..., None]] = {
    "inspect": inspect,
    "verify": verify,
    "import": import_labels,
    "export": export_labels,
    "draw": draw,
}
