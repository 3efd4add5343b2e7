"""The job script of examples/cluster/ on a real Slurm, of two hosts on one machine.

    apt-get install slurm-wlm
    python tests/cluster/slurm.py FOLDER

as root: jobs that are left alone, reach their time limit, are preempted, lose a host, have a process killed, are
cancelled. Those that Slurm starts again should end as one process alone does, the last two not be started again.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

sys.path.insert(0, str(Path(__file__).parent))
from hosts import BIN, LONG, NAMES, ROOT, Hosts, compare

SCRIPT = ROOT / "examples" / "cluster" / "train.sbatch"
# A host that does not answer for 20 s is down; a job that is preempted has 60 s to save and stop.
CONF = """
ClusterName=proof
SlurmctldHost={names[0]}({addresses[0]})
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ReturnToService=2
SlurmdTimeout=20
SchedulerParameters=sched_interval=5,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={names[0]} NodeAddr={addresses[0]} CPUs={cores}
NodeName={names[1]} NodeAddr={addresses[1]} CPUs={cores}
PartitionName=main Nodes=ALL Default=YES GraceTime=60 PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
"""


class Cluster:
    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.folder, self.hosts = folder, hosts
        configured = folder / "slurm.conf"
        addresses = [hosts.address(host) for host in range(2)]
        configured.write_text(CONF.format(names=NAMES, addresses=addresses, cores=os.cpu_count(), folder=folder))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        (folder / "state").mkdir()
        own = {"SLURM_CONF": str(configured), "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **own}

    @contextmanager
    def up(self) -> Iterator[None]:
        daemons = [(0, ["slurmctld", "-D", "-c"])]
        daemons += [(host, ["slurmd", "-D", "-N", name]) for host, name in enumerate(NAMES)]
        with open(self.folder / "slurm.log", "w") as log:
            running = []
            for host, words in daemons:
                running.append(Popen(self.hosts.command(host, words), env=self.environment, stdout=log, stderr=STDOUT))
                time.sleep(3)
            try:
                yield
            finally:
                for daemon in reversed(running):
                    daemon.terminate()
                    daemon.wait()
                for host in range(2):
                    self.hosts.kill(host)

    def tell(self, *words: str | Path) -> str:
        command = self.hosts.command(0, words)
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout.strip()

    def submit(self, name: str, *options: str) -> str:
        small = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1", "--time=30", *options]
        log = f"--output={self.folder / name}.log"
        return self.tell("sbatch", "--parsable", *small, log, SCRIPT, *LONG[:-1], "--out", self.folder / name)

    def said(self, job: str) -> dict[str, str]:
        return dict(re.findall(r"(\S+?)=(\S*)", self.tell("scontrol", "show", "job", job)))

    def await_requeue(self, job: str) -> None:
        while self.said(job)["Restarts"] == "0":
            time.sleep(1)

    def await_updates(self, name: str) -> None:
        lines = self.folder / name / "metrics.jsonl"
        while not (lines.exists() and lines.read_text().count("\n") > 20):
            time.sleep(0.1)


def left_alone(cluster: Cluster, job: str) -> None:
    cluster.await_updates("left_alone")


def limited(cluster: Cluster, job: str) -> None:
    """Its minute is over; it gets more the next time."""
    cluster.await_requeue(job)
    cluster.tell("scontrol", "update", f"JobId={job}", "TimeLimit=30")


def preempted(cluster: Cluster, job: str) -> None:
    cluster.await_updates("preempted")
    cluster.tell("sbatch", "-p", "urgent", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    cluster.await_requeue(job)


def cut(cluster: Cluster, job: str) -> None:
    cluster.await_updates("cut")
    cluster.hosts.plug("down")
    cluster.await_requeue(job)
    cluster.hosts.plug("up")


def cancelled(cluster: Cluster, job: str) -> None:
    cluster.await_updates("cancelled")
    cluster.tell("scancel", job)


def killed(cluster: Cluster, job: str) -> None:
    """A process of the second host, as one that has no memory left."""
    cluster.await_updates("killed")
    for process in cluster.hosts.processes(1):
        with suppress(OSError):
            if b"quickstart" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)


# what happens, options of sbatch, and how it should end: its state, and how often it was started again
SCENES: dict[str, tuple[Callable[[Cluster, str], None], tuple[str, ...], tuple[str, str]]] = {
    "left_alone": (left_alone, (), ("COMPLETED", "0")),
    "limited": (limited, ("--time=1", "--signal=TERM@20"), ("COMPLETED", "1")),
    "preempted": (preempted, ("--exclusive",), ("COMPLETED", "1")),
    "cut": (cut, (), ("COMPLETED", "1")),
    "killed": (killed, (), ("FAILED", "0")),
    "cancelled": (cancelled, (), ("CANCELLED", "0")),
}


def main(folder: Path, *names: str) -> int:
    if not shutil.which("slurmctld"):
        raise SystemExit("Slurm is not installed: apt-get install slurm-wlm")
    folder.mkdir(parents=True)
    alone = folder / "alone"
    subprocess.run([BIN / "labelflow", *LONG, "--out", alone], stdout=DEVNULL, check=True)
    failed = False
    with Hosts(folder) as hosts:
        cluster = Cluster(folder, hosts)
        with cluster.up():
            for name in names or SCENES:
                happens, options, expected = SCENES[name]
                job = cluster.submit(name, *options)
                happens(cluster, job)
                while (state := cluster.said(job)["JobState"]) in ("PENDING", "RUNNING", "COMPLETING"):
                    if state == "PENDING":  # Slurm waits for two minutes
                        cluster.tell("scontrol", "update", f"JobId={job}", "StartTime=now")
                    time.sleep(2)
                said = cluster.said(job)
                print(f"{name}: {said['JobState']}, exit code {said['ExitCode']}, {said['Restarts']} restarts")
                for line in (folder / f"{name}.log").read_text().splitlines():
                    if re.search("stopped|resuming|anew|error|labelflow:", line):
                        print("   ", line)
                failed |= (said["JobState"], said["Restarts"]) != expected
                if said["JobState"] == "COMPLETED":
                    differing, apart = compare(folder / name, alone)
                    same = f"{differing} differ" if differing else "weights, optimizer and training losses identical"
                    print(f"    {same}, evaluation losses {apart:.1g} apart at most")
                    failed |= bool(differing) or apart > 1e-6
                sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
