"""The folder of a run. Whatever is written there is written whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
DETAILS = "classes.json"


class Run:
    """recipe.json, model.json, environment.json, metrics.jsonl, classes.json (the metrics of each class at the last
    evaluation, where a task has such), checkpoints/, best.safetensors, last.safetensors"""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, value: Any) -> None:
        with whole_file(self / name) as path:
            path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def read(self, name: str) -> Any:
        try:
            return json.loads((self / name).read_text())
        except FileNotFoundError:
            raise ValueError(f"{self.folder} is not a run: it has no {name}") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"{self / name} is damaged: {error}") from None

    def weights(self, which: str = "best") -> Path:
        """best (last, before the first evaluation), last, or a file."""
        if which not in ("best", "last"):
            return Path(which)
        for name in dict.fromkeys((which, "last")):
            if (self / f"{name}.safetensors").exists():
                return self / f"{name}.safetensors"
        raise ValueError(f"{self.folder} has no weights yet; they come with its first checkpoint")

    def log(self, record: dict[str, Any]) -> None:
        """One more line of metrics."""
        with open(self / METRICS, "a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines; one that a kill left unfinished is left out."""
        records = []
        for line in (self / METRICS).read_text().splitlines() if (self / METRICS).exists() else []:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return records

    def rewind(self, update: int) -> None:
        """Forget the metrics of later updates: they come again."""
        kept = [json.dumps(record) + "\n" for record in self.metrics() if record["update"] <= update]
        with whole_file(self / METRICS) as path:
            path.write_text("".join(kept))


@contextmanager
def whole_file(path: Path, mark: str = "") -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when all is written. mark: of one of several writers."""
    draft = path.with_name(f".{path.name}{mark}.draft")
    try:
        yield draft
        _to_disk(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `path` when all is written."""
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        for file in draft.iterdir():
            _to_disk(file)
        os.replace(draft, path)
        _to_disk(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Wait until the system has written it, so that a power cut finds either the old or the new."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
