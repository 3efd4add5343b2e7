"""A table of labels from COCO's boxes: an image has a label for each kind of object that is marked in it.

python examples/coco_labels.py coco              # coco/annotations/instances_*.json -> coco/labels.csv
python examples/coco_labels.py coco --least 10   # classes that at least 10 training images show
labelflow train small_vit_multilabel --data coco/labels.csv
"""

import argparse
import csv
import json
from collections import Counter
from pathlib import Path


def read_labels(folder: Path, split: str) -> dict[str, set[str]]:
    """The labels of each image of a split, by its path below the folder; images without any object, too."""
    found = json.loads((folder / "annotations" / f"instances_{split}2017.json").read_bytes())
    names = {one["id"]: one["name"] for one in found["categories"]}
    paths = {one["id"]: f"{split}2017/{one['file_name']}" for one in found["images"]}
    labels: dict[str, set[str]] = {path: set() for path in paths.values()}
    for box in found["annotations"]:
        labels[paths[box["image_id"]]].add(names[box["category_id"]])
    return labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of COCO: annotations/, train2017/ and val2017/")
    parser.add_argument("--out", type=Path, help="the table; labels.csv in that folder by default")
    parser.add_argument("--least", type=int, default=1, help="leave out classes of fewer training images")
    options = parser.parse_args()
    out = options.out or options.folder / "labels.csv"
    images = {split: read_labels(options.folder, split) for split in ("train", "val")}
    counts = Counter(name for labels in images["train"].values() for name in labels)
    classes = {name for name, count in counts.items() if count >= options.least}
    with open(out, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", "labels", "split"])
        for split, labelled in images.items():
            for path, labels in labelled.items():
                table.writerow([path, ";".join(sorted(labels & classes)), split])
    print(f"{out}: {sum(map(len, images.values()))} images, {len(classes)} classes")


if __name__ == "__main__":
    main()
