"""Dense labels that an annotator gave once: kept in stores, read while training."""

from labelflow.labels.annotate import Annotation, annotate
from labelflow.labels.official import export_tree, import_tree
from labelflow.labels.sampling import StoreLabels, check_keys, label_view
from labelflow.labels.store import Draft, LabelMap, Manifest, Store

__all__ = [
    "Annotation",
    "Draft",
    "LabelMap",
    "Manifest",
    "Store",
    "StoreLabels",
    "annotate",
    "check_keys",
    "export_tree",
    "import_tree",
    "label_view",
]
