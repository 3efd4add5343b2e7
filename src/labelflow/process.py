"""Which of the processes this is that torchrun or accelerate launched."""

import os


def is_main_process() -> bool:
    """The one that prints and writes: rank 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def is_launched() -> bool:
    """By torchrun or accelerate, whether alone or with others."""
    return "RANK" in os.environ


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
