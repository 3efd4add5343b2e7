"""Release notes of a tag, from CHANGELOG.md: `python .github/release_notes.py v0.2.0 OWNER/NAME`

They are what stands before the first heading, and how to upgrade; a link leads to the rest.

A tag that is not the version of the package, of CITATION.cff and of the changelog's first section is an error.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHANGES = "CHANGELOG.md"
VERSIONS = {
    "src/labelflow/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
}


def notes(tag: str, repository: str, root: Path = ROOT) -> str:
    version = tag.removeprefix("v")
    for name, pattern in VERSIONS.items():
        (found,) = re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if found != version:
            sys.exit(f"{name} has version {found}, but the tag is {tag}")
    _, newest, *_ = (root / CHANGES).read_text(encoding="utf-8").split("\n## ")
    title, _, text = newest.partition("\n")
    if not re.fullmatch(re.escape(version) + r" \(\d{4}-\d\d-\d\d\)", title):
        sys.exit(f"{CHANGES} begins with {title}, but the tag is {tag}")
    first, *others = text.split("\n### ")
    parts = [first.strip(), *(f"### {other.strip()}" for other in others if other.startswith("Upgrading"))]
    parts += [f"[All changes]({CHANGES})"]
    home = f"https://github.com/{repository}/blob/{tag}/"
    return re.sub(r"\]\((?!https?:|#)", f"]({home}", "\n\n".join(parts))


if __name__ == "__main__":
    print(notes(*sys.argv[1:3]))
