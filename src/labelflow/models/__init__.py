"""Models that timm lacks, registered with timm: after `import labelflow.models`, `timm.create_model` knows them."""

from labelflow.models import lvvit, pvt, t2t

__all__ = ["lvvit", "pvt", "t2t"]
