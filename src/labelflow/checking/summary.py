"""A folder of images in numbers: what is in it, and how much is wrong with it. It is what check.json holds.

Shapes: N files.
"""

from collections import Counter
from typing import Any

import numpy as np
from numpy import ndarray

from labelflow.checking.listing import Listing
from labelflow.checking.problems import KINDS, Finding, readable
from labelflow.data.checked import ANIMATED, ROTATED, TRANSPARENT

Summary = dict[str, Any]
SPECIAL = {"rotated by EXIF": ROTATED, "animated or of several pages": ANIMATED, "transparent": TRANSPARENT}
COLOURS = {  # by PIL's modes
    "RGB": "RGB",
    "RGBA": "RGB",
    "L": "grey",
    "LA": "grey",
    "P": "palette",
    "PA": "palette",
    "1": "black and white",
    "I": "16 or 32 bits",
    "F": "16 or 32 bits",
}


def summarise(listing: Listing, rows: ndarray, problems: list[Finding]) -> Summary:
    """rows: (N,) FILE"""
    whole = rows[readable(rows)]
    counts = listing.class_counts()
    counted = Counter(problem.problem for problem in problems)
    colours = Counter(colour_of(mode.decode()) for mode in whole["mode"].tolist())
    return {
        "folder": str(listing.root),
        "images": len(rows),
        "readable": len(whole),
        "bytes": int(rows["size"].sum()),
        "splits": {name: int((listing.parts == place).sum()) for place, name in enumerate(listing.splits) if name},
        "classes": {name: sum(row) for name, row in zip(listing.classes, counts.tolist(), strict=True)},
        "shorter_side": _spread(np.minimum(whole["width"], whole["height"])),
        "longer_side": _spread(np.maximum(whole["width"], whole["height"])),
        "aspect": _spread(aspects(whole)),
        "formats": dict(Counter(name.decode() for name in whole["format"].tolist()).most_common()),
        "colours": dict(colours.most_common()),
        "special": {name: int((whole["flags"] & flag > 0).sum()) for name, flag in SPECIAL.items()},
        "problems": {kind: {"level": KINDS[kind].level, "count": counted[kind]} for kind in KINDS if counted[kind]},
        "passed": not any(KINDS[kind].level == "error" for kind in counted),
    }


def colour_of(mode: str) -> str:
    """For people.

    >>> colour_of("I;16B"), colour_of("L")
    ('16 or 32 bits', 'grey')
    """
    return COLOURS.get(mode, "16 or 32 bits" if mode.startswith("I;16") else mode)


def aspects(rows: ndarray) -> ndarray:
    """(N,): width by height"""
    return np.divide(rows["width"], rows["height"])


def _spread(values: ndarray) -> dict[str, float]:
    """{} if there are none."""
    return {
        name: round(float(np.quantile(values, part)), 3)
        for name, part in (("least", 0.0), ("median", 0.5), ("most", 1.0))
        if len(values)
    }
