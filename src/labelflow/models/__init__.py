"""Models that timm lacks, registered with timm: after `import labelflow`, `timm.create_model` knows them."""

from labelflow.models import pvt

__all__ = ["pvt"]
