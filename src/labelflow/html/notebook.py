"""Pages inside notebooks."""

from html import escape
from pathlib import Path

from labelflow.tables import Table


class Page(Table):
    """Results that a notebook shows as their page."""

    @property
    def page(self) -> Path:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.page}, .to_pandas()"

    def _repr_html_(self) -> str:
        return frame(self.page.read_text(encoding="utf-8"))


def frame(page: str, height: int = 600) -> str:
    """A page in a frame of its own, so that neither its style nor the notebook's reaches the other."""
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<iframe srcdoc="{escape(page)}" style="{style}" loading="lazy"></iframe>'
