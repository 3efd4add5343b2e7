"""Images and labels in the columns of a Hugging Face data set.

Shapes: N samples, C classes.
"""

import io
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from PIL import Image

from labelflow.data.settings import Columns
from labelflow.data.several import multi_hot


class ColumnLabels(NamedTuple):
    """The column of labels."""

    column: str
    several: bool
    texts: bool  # not numbers
    classes: list[str]  # empty: those of the training images

    def of(self, value: Any) -> Any:
        """A sample's label."""
        if not self.several:
            return value
        try:
            ids = [self.classes.index(one) for one in value or []] if self.texts else value or []
        except ValueError as error:
            raise ValueError(f"a class of the column {self.column} is unknown: {error}") from None
        return multi_hot(ids, len(self.classes))


def arrow_pair(labels: ColumnLabels, row: Any) -> tuple[Image.Image, Any]:
    """Of a table with one row, which is not copied."""
    image, label = row.column("image")[0], row.column(labels.column)[0].as_py()
    content = image["bytes"]
    opened = Image.open(io.BytesIO(content.as_buffer()) if content.is_valid else image["path"].as_py())
    return opened, labels.of(label)


def column_labels(labels: ColumnLabels, dataset: Any) -> ndarray:
    """Of all samples, from that column alone: (N,), or (N, C) bool where there are several."""
    column = dataset.select_columns(labels.column)[:].column(labels.column)
    if not labels.several:
        return column.to_numpy()
    return np.array([labels.of(value) for value in column.to_pylist()], bool)


def sample_pair(labels: ColumnLabels, sample: dict[str, Any]) -> tuple[Image.Image, Any]:
    image = sample["image"]
    opened = Image.open(io.BytesIO(image["bytes"]) if image["bytes"] else image["path"])
    return opened, labels.of(sample[labels.column])


def find_labels(features: Any, name: str, columns: Columns) -> ColumnLabels:
    one: Any = features.get(columns.label_column)
    several: Any = features.get(columns.labels_column)
    inner: Any = getattr(several, "feature", None)  # of a list
    if "image" in features and hasattr(inner, "names"):
        return ColumnLabels(columns.labels_column, True, False, list(inner.names))
    if "image" in features and getattr(inner, "dtype", "") in ("string", "large_string"):
        return ColumnLabels(columns.labels_column, True, True, list(columns.class_names))
    if "image" in features and hasattr(one, "names"):
        return ColumnLabels(columns.label_column, False, False, list(one.names))
    raise ValueError(
        f"{name} should have a column image and a column {columns.label_column} with class names, or "
        f"{columns.labels_column} with lists of them, not {list(features)}"
    )
