"""Images and labels in the columns of a Hugging Face data set.

Shapes: N samples, C classes, L labels of all samples.
"""

import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from labelflow.data.columns import check_asked, choose_labels
from labelflow.data.settings import Columns
from labelflow.data.several import LabelLists, multi_hot


class ColumnLabels(NamedTuple):
    """The column of labels."""

    column: str
    several: bool
    texts: bool  # not numbers
    classes: list[str]  # empty: those of the training images

    def of(self, value: Any) -> Any:
        """A sample's label."""
        places = [self._place(one) for one in (value or [] if self.several else [value])]
        return multi_hot(places, len(self.classes)) if self.several else places[0]

    def _place(self, value: Any) -> int:
        known = value in self.classes if self.texts else value is not None and 0 <= value < len(self.classes)
        if not known:
            raise ValueError(f"a sample has {self.refusal(value)}")
        return self.classes.index(value) if self.texts else value

    def refusal(self, value: Any) -> str:
        hint = "; --class-names can name all there are" if self.texts else ""
        return f"{value!r} in the column {self.column}, which is none of the {len(self.classes)} classes{hint}"


def arrow_pair(labels: ColumnLabels, row: Any) -> tuple[Image.Image, Any]:
    """Of a table with one row, which is not copied."""
    image, label = row.column("image")[0], row.column(labels.column)[0].as_py()
    content = image["bytes"]
    opened = Image.open(io.BytesIO(content.as_buffer()) if content.is_valid else image["path"].as_py())
    return opened, labels.of(label)


def column_lists(labels: ColumnLabels, dataset: Any, title: str) -> LabelLists:
    """Of all samples, from that column alone; ValueError if one has a label that is no class."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = dataset.select_columns(labels.column)[:].column(labels.column)
    values, counts = column, np.ones(len(column), np.int64)  # (L,), (N,)
    if labels.several:
        values, counts = pc.list_flatten(column), pc.list_value_length(column).fill_null(0).to_numpy()
    ids = pc.index_in(values, value_set=pa.array(labels.classes, values.type)) if labels.texts else values
    ids = ids.fill_null(-1).to_numpy()
    starts = np.concatenate([[0], np.cumsum(counts)])
    wrong = np.flatnonzero((ids < 0) | (ids >= len(labels.classes)))
    if len(wrong):
        sample = np.searchsorted(starts, wrong[0], "right") - 1
        raise ValueError(f"{title}[{sample}] has {labels.refusal(values[wrong[0]].as_py())}")
    return LabelLists(ids.astype(np.int32), starts, len(labels.classes))


def sample_pair(labels: ColumnLabels, sample: dict[str, Any]) -> tuple[Image.Image, Any]:
    image = sample["image"]
    opened = Image.open(io.BytesIO(image["bytes"]) if image["bytes"] else image["path"])
    return opened, labels.of(sample[labels.column])


def find_labels(features: Any, name: str, columns: Columns) -> ColumnLabels:
    check_asked(columns, ("label_column", "labels_column"), list(features), name)
    found = choose_labels(columns, lambda column, several: _can_be(features.get(column), several), name)
    if "image" not in features or found is None:
        raise ValueError(
            f"{name} should have a column image and a column {columns.label_column} with class names, or "
            f"{columns.labels_column} with lists of them, not {list(features)}"
        )
    column, several = found
    feature = features[column].feature if several else features[column]
    texts = not hasattr(feature, "names")
    return ColumnLabels(column, several, texts, list(columns.class_names if texts else feature.names))


def _can_be(feature: Any, several: bool) -> bool:
    """Whether a column holds such labels: classes, or lists of classes or texts."""
    if not several:
        return hasattr(feature, "names")
    inner = getattr(feature, "feature", None)  # of a list
    return hasattr(inner, "names") or getattr(inner, "dtype", "") in ("string", "large_string")
