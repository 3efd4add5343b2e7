"""Guides by name. One guide, one file, one line here."""

from labelflow.guides.base import Guide

GUIDES: dict[str, type[Guide]] = {}
