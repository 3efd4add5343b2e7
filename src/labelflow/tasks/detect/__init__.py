"""Detection and instance segmentation: data, models and metrics."""
