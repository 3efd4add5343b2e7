"""Semantic segmentation: data, models, inference and metrics."""
