"""Dense labels that an annotator gave once: kept in stores, read while training."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow.labels.annotation import annotate
    from labelflow.labels.draft import Draft
    from labelflow.labels.official import export_tree, import_tree
    from labelflow.labels.sampling import StoreLabels, check_keys, label_view
    from labelflow.labels.settings import Annotation
    from labelflow.labels.store import LabelMap, Manifest, Store
else:
    __getattr__, __dir__ = exports(__name__)

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
