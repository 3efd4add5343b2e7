"""Moved to `labelflow.html`; here until robust/ imports it from there."""

from labelflow.html import document

__all__ = ["document"]
