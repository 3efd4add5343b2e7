"""What is remembered of data between commands, outside of it, so that nobody's images are touched."""

import hashlib
import os
from pathlib import Path


def cache_folder(data: Path | str) -> Path:
    """Where to remember things about a folder of images or of shards: in $LABELFLOW_CACHE, or in labelflow/ of the
    user's cache folder. It may not exist yet; whatever is in it can be made again."""
    given = os.environ.get("LABELFLOW_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labelflow"
    place = os.path.realpath(data)
    digest = hashlib.blake2b(os.fsencode(place), digest_size=6).hexdigest()
    return base / "data" / f"{os.path.basename(place)}-{digest}"
