"""Which of the processes this is that torchrun or accelerate launched, and the cores that it has."""

import os


def is_main_process() -> bool:
    """The one that prints and writes: rank 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def is_launched() -> bool:
    """By torchrun or accelerate, whether alone or with others."""
    return "RANK" in os.environ


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def core_count() -> int:
    """For one of the processes on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
