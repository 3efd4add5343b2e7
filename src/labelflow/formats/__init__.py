"""What a classifier is exported as: one format, one file.

A format is a module with `PACKAGES` (to be installed), `FILE` (what is opened), `USAGE` (Python lines that open it in
its folder), `write(classifier, folder)`, and `read(folder)`: it again, from images (B, 3, H, W) to logits (B, C).
"""

from types import ModuleType

from labelflow.lazy import Registry

FORMATS = Registry[ModuleType](
    {
        "timm": "labelflow.formats.timm_folder",
        "onnx": "labelflow.formats.onnx_file",
        "torch": "labelflow.formats.torch_program",
    }
)

__all__ = ["FORMATS"]
