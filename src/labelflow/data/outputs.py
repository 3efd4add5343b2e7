"""Where results may be written: not among the images, of which they would become a part."""

from pathlib import Path

from labelflow.data.folder import SPLITS, check_outside, first_folder
from labelflow.data.rows import is_table
from labelflow.data.sources import is_named


def check_output(source: str, out: Path) -> None:
    """ValueError if what is written to a folder would become a class of the data, or a part of one."""
    if source and not is_named(source) and not is_table(source):
        root = Path(source)
        for images in _class_parents(root):
            check_outside(out, images, root.resolve().parent / out.name)


def _class_parents(root: Path) -> list[Path]:
    """Where the class folders are: in those of both splits, or in the root."""
    return [half for names in SPLITS.values() if (half := first_folder(root, names))] or [root]
