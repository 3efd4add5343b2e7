"""Moved to `labelflow.html`; here until robust/ imports it from there."""

from labelflow.html.chart import HEIGHT, WIDTH, Point, line_chart

__all__ = ["HEIGHT", "WIDTH", "Point", "line_chart"]
