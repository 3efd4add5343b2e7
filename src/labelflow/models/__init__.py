"""Models that timm lacks, registered with timm: after `import labelflow.models`, `timm.create_model` knows them."""

from labelflow.models import lvvit, merging, mlp_mixer, pvt, t2t

__all__ = ["lvvit", "merging", "mlp_mixer", "pvt", "t2t"]
