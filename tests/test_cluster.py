"""What examples/cluster/ has for clusters. tests/cluster/slurm.py tries the job script on a real Slurm; here, srun and
scontrol are stand-ins, with which the script trains on two hosts and is told to stop."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser

import labelflow.api
from cluster.hosts import NAMES, Hosts, compare
from labelflow.cli import main

EXAMPLES = Path(__file__).parent.parent / "examples" / "cluster"
TRAINING = [
    *("train", "quickstart", "--data", "world(train=64, val=16)", "--image-size", "32", "--epochs", "12"),
    *("--model", "vit_tiny_patch16_224(patch_size=16, embed_dim=24, depth=1, num_heads=3)", "--eval-epochs", "12"),
    *("--batch", "16", "--micro-batch", "8", "--log-updates", "1", "--keep", "1", "--workers", "0"),
]
# Starts the tasks, each on its host, and ends with the highest of their exit codes, as srun does.
SRUN = """#!/bin/bash
shift
for ((task = 0; task < SLURM_NTASKS; task++)); do
    enter=ENTER_$task
    SLURM_PROCID=$task SLURM_LOCALID=0 ${!enter} "$@" & tasks+=($!)
    echo $! >> "$SEEN/tasks"
done
code=0
for task in "${tasks[@]}"; do
    wait "$task"
    status=$?
    ((status > code)) && code=$status
done
exit $code
"""
SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then tr , '\\n' <<< "$3"; else echo "$@" >> "$SEEN/requeued"; fi
"""


class Slurm:
    def __init__(self, folder: Path, hosts: Hosts | None) -> None:
        self.folder, self.hosts = folder, hosts
        for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def start(self, nodes: int, *words: str | Path, number: str = "") -> Popen[str]:
        """A job, as Slurm starts it on its first node. number: in an array, if it is in one."""
        names = NAMES[:nodes] if self.hosts else ["localhost"]
        own = {"SLURM_JOB_ID": "1234", "SLURM_JOB_NODELIST": ",".join(names), "SLURM_NTASKS": str(nodes)}
        own |= {"SLURM_ARRAY_TASK_ID": number, "SLURM_CPUS_PER_TASK": "1", "SEEN": str(self.folder)}
        if self.hosts:
            own |= {f"ENTER_{task}": " ".join(self.hosts.prefix(task)) for task in range(nodes)}
        path = os.pathsep.join([str(self.folder), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, **own, "PATH": path}
        command = ["bash", str(EXAMPLES / "train.sbatch"), *map(str, words)]
        return Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def requeued(self) -> str:
        asked = self.folder / "requeued"
        return asked.read_text() if asked.exists() else ""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """Its tasks on two hosts. Only root may make these, on Linux with iproute2: elsewhere both run on this one."""
    with ExitStack() as stack:
        try:
            hosts = stack.enter_context(Hosts(tmp_path))
        except PermissionError:
            hosts = None
        yield Slurm(tmp_path, hosts)


@pytest.mark.skipif(not shutil.which("bash") or sys.platform == "win32", reason="the job script is one for bash")
def test_a_job_that_is_told_to_stop_is_requeued_and_ends_as_if_left_alone(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slurm.start(2, *TRAINING, "--seed", "%a", "--out", tmp_path / "job_%a", number="5")
    lines = tmp_path / "job_5" / "metrics.jsonl"
    while job.poll() is None and not (lines.exists() and lines.read_text().count("\n") > 3):
        time.sleep(0.02)
    for task in map(int, (tmp_path / "tasks").read_text().split()):
        os.kill(task, signal.SIGTERM)
    said, _ = job.communicate()
    assert job.returncode == 130, said
    assert slurm.requeued() == "requeue 1234\n"
    assert said.count("checkpoint saved. Continue with --resume") == 2
    assert 3 < lines.read_text().count("\n") < 48

    monkeypatch.setattr(labelflow.api, "write_report", lambda folder: None)
    assert main([*TRAINING, "--seed", "5", "--resume", "--out", str(tmp_path / "job_5")]) == 0
    assert main([*TRAINING, "--seed", "5", "--out", str(tmp_path / "alone")]) == 0
    differing, apart = compare(tmp_path / "job_5", tmp_path / "alone")
    assert differing == []
    assert apart < 1e-6


@pytest.mark.skipif(not shutil.which("bash") or sys.platform == "win32", reason="the job script is one for bash")
def test_a_job_that_fails_is_not_requeued(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, None)
    job = slurm.start(1, "list")
    said, _ = job.communicate()
    assert job.returncode == 2
    assert "--resume" in said, "which the script adds, and list does not know"
    assert not slurm.requeued()


@pytest.mark.skipif(not shutil.which("bash") or sys.platform == "win32", reason="the job script is one for bash")
def test_the_number_in_an_array_is_for_jobs_of_one(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, None)
    job = slurm.start(1, "train", "quickstart", "--out", tmp_path / "job_%a")
    said, _ = job.communicate()
    assert (job.returncode, said.count("\n")) == (2, 1)
    assert "give sbatch --array" in said
    assert not (tmp_path / "tasks").exists(), "srun was not called"


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_accelerate_takes_every_setting(name: str) -> None:
    """Accelerate refuses settings that it does not know, but not those of fsdp_config, and takes no notice of those
    that its launcher has a default for."""
    file = EXAMPLES / f"{name}.yaml"
    settings, taken = yaml.safe_load(file.read_text()), load_config_from_file(str(file))
    options = launch_command_parser().parse_args(["--config_file", str(file), "-m", "labelflow"])
    launched = vars(options)
    for key, value in settings.items():
        if key in ("distributed_type", "mixed_precision"):
            assert isinstance(value, str)
        elif key != "fsdp_config":
            assert launched[key] is None, f"{key} has no effect"
    assert set(settings.get("fsdp_config", {})) <= set(launched)
    assert taken.num_processes == 8 * taken.num_machines == 16
