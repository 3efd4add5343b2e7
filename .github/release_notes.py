"""Release notes of a tag: what CHANGELOG.md says about its version. `python .github/release_notes.py v0.2.0`

A tag that is not the version of the package, of CITATION.cff and of the changelog's first section is an error.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = {
    "src/labelflow/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
}


def notes(tag: str, root: Path = ROOT) -> str:
    version = tag.removeprefix("v")
    for name, pattern in VERSIONS.items():
        (found,) = re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if found != version:
            sys.exit(f"{name} has version {found}, but the tag is {tag}")
    _, newest, *_ = (root / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")
    title, _, text = newest.partition("\n")
    if not re.fullmatch(re.escape(version) + r" \(\d{4}-\d\d-\d\d\)", title):
        sys.exit(f"CHANGELOG.md begins with {title}, but the tag is {tag}")
    return text.strip()


if __name__ == "__main__":
    print(notes(sys.argv[1]))
