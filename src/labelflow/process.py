"""Which of the processes this is that torchrun or accelerate launched, the cores that it has, and what it can print."""

import io
import os
import sys


def is_main_process() -> bool:
    """The one that prints and writes: rank 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def is_launched() -> bool:
    """By torchrun or accelerate, whether alone or with others."""
    return "RANK" in os.environ


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def print_anything() -> None:
    """Letters that the console or the encoding of a pipe lacks are escaped: names of files may be any bytes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def core_count() -> int:
    """For one of the processes on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
