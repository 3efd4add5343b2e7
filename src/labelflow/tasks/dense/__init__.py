"""What segmentation and detection share: backbones with four levels, and samples on their way to a model."""
