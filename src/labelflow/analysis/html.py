"""A page that is one file and needs nothing else."""

from html import escape
from pathlib import Path


def document(title: str, body: str, style: str = "") -> str:
    """A whole page; `style` comes after what all pages have."""
    shared = Path(__file__).with_name("report.css").read_text()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} – labelflow</title>
<style>
{shared}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
