"""Damage what labelflow has written, or what it runs on: does each command come to the same numbers, or refuse with one
line that names the file?

    python tests/engine/faults.py FOLDER
"""

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from faulty_folders import Folders
from faulty_machines import Machines
from trials import Outcome

KINDS = {
    "survived": "survived",
    "admitted": "admitted to be incomplete",
    "refused": "refused in one line that names the file",
    "SILENT": "silent",
    "TRACEBACK": "tracebacks",
    "UNCLEAR": "unclear",
    "CHANGED": "changed by a refusal",
    "skipped": "skipped",
}
ALWAYS = ("survived", "refused", "SILENT", "TRACEBACK")
QUICK = 80  # one fault of so many


def outcomes(folder: Path, quick: bool) -> Iterator[Outcome]:
    def chosen(*what: str) -> bool:
        return not quick or hashlib.sha256(" ".join(what).encode()).digest()[0] % QUICK == 0

    folders = Folders(folder)
    for scene in folders.scenes():
        yield from folders.outcomes(scene, chosen)
    yield from Machines(folders).outcomes(quick)


def main(folder: Path, quick: bool) -> int:
    found = []
    for outcome in outcomes(folder.resolve(), quick):
        found.append(outcome)
        told = outcome.said.replace(str(folder.resolve()), "…")
        print(f"{outcome.kind:10} {outcome.fault:62} {outcome.command:22} {told}", flush=True)
    counts = Counter(outcome.kind for outcome in found)
    parts = [f"{counts[kind]} {text}" for kind, text in KINDS.items() if counts[kind] or kind in ALWAYS]
    print(f"\n{len(found)} faults tried, {', '.join(parts)}")
    return int(not all(outcome.good for outcome in found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="is made, and filled")
    parser.add_argument("--quick", action="store_true", help="a part of the faults")
    arguments = parser.parse_args()
    sys.exit(main(arguments.folder, arguments.quick))
