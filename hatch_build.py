"""Where the package comes from: its addresses, and a README whose links work away from the repository.

The hosted build says in LABELFLOW_REPOSITORY (owner/name) where it is; any other has the papers' addresses only.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPERS = {
    "TL-Align (paper)": "https://arxiv.org/abs/2210.06455",
    "Token Labeling (paper)": "https://arxiv.org/abs/2104.10858",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")  # not to another host, nor within the page


class Addresses(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository, tag = os.environ.get("LABELFLOW_REPOSITORY"), f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = (addresses(repository) if repository else {}) | PAPERS
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, repository, tag) if repository else text,
        }


def addresses(repository: str) -> dict[str, str]:
    owner, name = repository.split("/")
    home = f"https://github.com/{repository}"
    return {
        "Documentation": f"https://{owner.lower()}.github.io/{name}/",
        "Repository": home,
        "Issues": f"{home}/issues",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
    }


def absolute(text: str, repository: str, tag: str) -> str:
    """Links to files and pictures of the repository, as they are in this version."""

    def link(match: re.Match[str]) -> str:
        picture, label, path = match.groups()
        kind = "raw" if picture else "blob"
        return f"{picture}[{label}](https://github.com/{repository}/{kind}/{tag}/{path})"

    return LINK.sub(link, text)
