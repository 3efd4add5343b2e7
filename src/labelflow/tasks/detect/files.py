"""Where the parts of a COCO folder are."""

from pathlib import Path

from labelflow.data.folder import SPLITS


def given(root: Path, name: str) -> Path:
    """A path, from here or from the folder."""
    for path in (Path(name), root / name):
        if path.exists():
            return path
    raise ValueError(f"there is neither {name} nor {root / name}")


def find_annotations(root: Path, split: str) -> Path:
    """`annotations/instances_train2017.json`, or what is like it: the only file with the split in its path."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}; give --data FOLDER, or --data world, which needs no files")
    option = "train" if split == "train" else "val"
    names = SPLITS[option]
    files = [*root.glob("annotations/*.json"), *root.glob("*.json")]
    files = [path for path in files if any(name in path.stem for name in names)]
    files = [path for path in files if path.stem.startswith("instances_")] or files
    files = files or [path for name in names for path in root.glob(f"{name}/*.json")]
    if len(files) == 1:
        return files[0]
    found = "several annotation files" if files else "no annotation file"
    raise ValueError(
        f"{root} has {found} for {option!r}, such as annotations/instances_{option}2017.json; "
        f"say which: --{option}-json FILE"
    )


def find_images(file: Path, first: str) -> Path:
    """The folder near an annotation file that has its first image: called as the file is, or as its split is."""
    part = file.stem.removeprefix("instances_")
    roots = (file.parent.parent, file.parent) if file.parent.name == "annotations" else (file.parent,)
    splits = [name for names in SPLITS.values() for name in names if name in part]
    names = (part, *splits, ".")
    places = [root / inside / name for root in roots for inside in (".", "images") for name in names]
    for place in places:
        if (place / first).is_file():
            return place
    searched = sorted({str(place) for place in places})
    raise ValueError(
        f"{first}, an image of {file}, is in none of {', '.join(searched)}; say where with "
        "--train-images or --val-images FOLDER"
    )
