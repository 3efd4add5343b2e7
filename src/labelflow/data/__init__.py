"""Where images come from, and how they are seen."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow.data.batches import fit_micro_batch
    from labelflow.data.device import on_device
    from labelflow.data.folder import Folder
    from labelflow.data.growth import BySize, Growth
    from labelflow.data.loader import eval_batches, train_batches
    from labelflow.data.preprocessing import Preprocessing
    from labelflow.data.settings import Data
    from labelflow.data.shards import Shards
    from labelflow.data.sources import SOURCES, Stream, open_map_style, open_source
    from labelflow.data.transforms import train_transform
    from labelflow.data.unreadable import FileCheck, Problem, Unreadable
    from labelflow.data.views import Batch, PixelBatch, Source
    from labelflow.data.world import World, scene
else:
    __getattr__, __dir__ = exports(__name__)

__all__ = [
    "SOURCES",
    "Batch",
    "BySize",
    "Data",
    "FileCheck",
    "Folder",
    "Growth",
    "PixelBatch",
    "Preprocessing",
    "Problem",
    "Shards",
    "Source",
    "Stream",
    "Unreadable",
    "World",
    "eval_batches",
    "fit_micro_batch",
    "on_device",
    "open_map_style",
    "open_source",
    "scene",
    "train_batches",
    "train_transform",
]
