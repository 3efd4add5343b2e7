"""What the tests catch: small mistakes made on purpose, one at a time, and the tests that should notice each.

    python benchmarks/mutants.py                 # all of them, about ten minutes on a quiet core
    python benchmarks/mutants.py --only flow     # those whose file or test has this in its path

A mutant is one table in mutants.toml: `file` (in src/labelflow), `old` (a piece of it that occurs once), `new`, `test`
(what should fail). Mutants live in a copy of the sources: nothing here is edited.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str
    new: str
    test: str

    def source(self, root: Path) -> str:
        """The file with the mistake; an error if the old text is not there exactly once."""
        text = (root / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} places with {self.old!r}; it should have one")
        return text.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return [Mutant(**values) for values in table["mutant"]]


def caught(mutant: Mutant, sources: Path) -> bool:
    """Whether its test fails; `sources` is a copy of src that may be changed."""
    path = sources / "labelflow" / mutant.file
    whole = path.read_text()
    path.write_text(mutant.source(sources / "labelflow"))
    environment = {**os.environ, "PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *mutant.test.split()], cwd=ROOT, env=environment, capture_output=True, check=False
        )
    finally:
        path.write_text(whole)
    if done.returncode not in (0, 1):
        raise ValueError(f"{mutant.test} could not be run: {done.stdout.decode()[-500:]}")
    return done.returncode == 1


def main(only: str = "") -> None:
    """Args:
    only: Mutants whose file or test has this in its path.
    """
    chosen = [mutant for mutant in mutants() if only in f"{mutant.file} {mutant.test}"]
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        for number, mutant in enumerate(chosen, start=1):
            found = caught(mutant, sources)
            survived += [] if found else [mutant]
            verdict = "caught  " if found else "SURVIVED"
            change = f"{' '.join(mutant.old.split())} -> {' '.join(mutant.new.split())}"
            print(f"{number:3}/{len(chosen)} {verdict} {mutant.file}: {change[:110]}", flush=True)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught")
    sys.exit(bool(survived))


if __name__ == "__main__":
    tyro.cli(main)
