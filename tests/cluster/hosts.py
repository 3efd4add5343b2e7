"""Two hosts on one machine: two network namespaces that a cable joins, each with a name of its own, on one disk.

    python tests/cluster/hosts.py FOLDER

as root, with iproute2: trains on both by torchrun and by accelerate, cuts one off, kills its processes, tells one to
stop, and resumes. Do all of these end as one process alone does, bit for bit?
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, Popen

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
from survive import ended

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
NAMES = ("node1", "node2")
# In namespaces of its own: its name, the hosts that it knows, and what it runs.
ENTER = """#!/bin/sh
hostname "$1"
mount --bind HOSTS /etc/hosts
shift
exec "$@"
"""
PORT = 29400
TRAINING = [
    *("train", "quickstart", "--data", "world(train=64, val=32)", "--image-size", "32", "--epochs", "10"),
    *("--model", "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)", "--eval-epochs", "5"),
    *("--batch", "16", "--micro-batch", "8", "--log-updates", "1", "--save-updates", "10", "--resume"),
]
LONG = [*TRAINING[:-1], "--epochs", "60", TRAINING[-1]]  # which something can happen to


class Hosts:
    """PermissionError where namespaces are not permitted."""

    def __init__(self, folder: Path) -> None:
        known, self.enter = folder / "hosts", folder / "enter"
        addresses = (f"{self.address(number)} {name}\n" for number, name in enumerate(NAMES))
        known.write_text("127.0.0.1 localhost\n" + "".join(addresses))
        self.enter.write_text(ENTER.replace("HOSTS", str(known)))
        self.enter.chmod(0o755)
        self.spaces = [f"labelflow-{os.getpid()}-{name}" for name in NAMES]

    def __enter__(self) -> "Hosts":
        if missing := [name for name in ("ip", "nsenter", "unshare", "hostname") if not shutil.which(name)]:
            raise PermissionError(f"{', '.join(missing)} is not installed")
        with ExitStack() as undo:
            for space in self.spaces:
                _ip("netns", "add", space)
                undo.callback(_ip, "netns", "del", space)
            here, there = self.spaces
            _ip("-n", here, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", there)
            for number, space in enumerate(self.spaces):
                _ip("-n", space, "address", "add", f"{self.address(number)}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    _ip("-n", space, "link", "set", device, "up")
            if subprocess.run(self.command(1, ["true"]), stdout=DEVNULL, stderr=DEVNULL, check=False).returncode:
                raise PermissionError("namespaces cannot be entered")
            self.undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.undo.close()

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def prefix(self, host: int) -> list[str]:
        """What to write before a command, so that it runs there; the process stays the same one."""
        enter = ["nsenter", f"--net=/run/netns/{self.spaces[host]}", "unshare", "--uts", "--mount"]
        return [*enter, str(self.enter), NAMES[host]]

    def command(self, host: int, words: Sequence[str | Path]) -> list[str]:
        return [*self.prefix(host), *map(str, words)]

    def processes(self, host: int) -> list[int]:
        return [int(process) for process in _ip("netns", "pids", self.spaces[host]).split()]

    def kill(self, host: int) -> None:
        """All that runs there. torchrun alone would leave behind what it has started."""
        for process in self.processes(host):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def plug(self, cable: str) -> None:
        """up or down"""
        _ip("-n", self.spaces[1], "link", "set", "cable", cable)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def compare(found: Path, expected: Path) -> tuple[list[str], float]:
    """Which files differ, and how far losses of evaluations are apart, which two processes sum up in another order than
    one: in the last bit of float32. Reports and environments name the processes."""
    lines, others = (
        [json.loads(line) | {"images_per_second": 0} for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (found, expected)
    )
    pairs = [(line, other) for line, other in zip(lines, others, strict=False) if line["kind"] == "eval"]
    apart = max(abs(line.pop("loss") - other.pop("loss")) for line, other in pairs)
    files, wanted = ended(found), ended(expected)
    own = {"environment.json", "report.html", "checksums.json", "metrics.jsonl"}
    differing = {name for name in {*files, *wanted} - own if files.get(name) != wanted.get(name)}
    return sorted(differing | ({"metrics.jsonl"} if lines != others else set())), apart


class Proof:
    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.folder, self.hosts = folder, hosts
        self.failed = False

    def torchrun(self, host: int, training: Sequence[str], out: Path, restarts: int = 0) -> Popen[str]:
        where = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(restarts), "--rdzv-backend", "c10d"]
        where += ["--rdzv-endpoint", f"{NAMES[0]}:{PORT}"]
        return self.start(host, [BIN / "torchrun", *where, "-m", "labelflow", *training, "--out", out])

    def accelerate(self, host: int, training: Sequence[str], out: Path) -> Popen[str]:
        where = ["--config_file", ROOT / "examples/cluster/ddp.yaml", "--num_processes", "2"]
        where += ["--main_process_ip", NAMES[0], "--machine_rank", str(host)]
        return self.start(host, [BIN / "accelerate", "launch", *where, "-m", "labelflow", *training, "--out", out])

    def start(self, host: int, words: Sequence[str | Path]) -> Popen[str]:
        quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
        log = open(self.folder / f"{NAMES[host]}.log", "w+")  # noqa: SIM115
        return Popen(self.hosts.command(host, words), stdout=log, stderr=log, text=True, env=quiet)

    def alone(self, training: Sequence[str], out: Path) -> None:
        quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([BIN / "labelflow", *training, "--out", out], env=quiet, stdout=DEVNULL, check=True)

    def run(
        self,
        name: str,
        training: Sequence[str],
        launch: Callable[..., Popen[str]],
        happens: Callable[[Hosts, list[Popen[str]]], None] | None,
        resumed: int,
    ) -> None:
        """Train on both hosts; if something happens to them after a while, resume on so many, or leave that to torchrun
        (0); compare with a run that was alone."""
        out, alone = self.folder / name, self.folder / f"alone{len(training)}"
        if not alone.exists():
            self.alone(training, alone)
        hosts = [launch(self, host, training, out) for host in range(2)]
        if happens:
            while self.updates(out) < 25:
                time.sleep(0.1)
                assert all(host.poll() is None for host in hosts), "ended before anything happened"
            happens(self.hosts, hosts)
            print(f"{name}: after {self.updates(out)} lines of metrics; newest checkpoint: {self.checkpoint(out)}")
            self.show()
            if resumed == 2:
                hosts = [launch(self, host, training, out) for host in range(2)]
            if resumed == 1:
                self.alone(training, out)
                hosts = []
        codes = [host.wait(300) for host in hosts]
        differing, apart = compare(out, alone)
        same = f"{differing} differ" if differing else "weights, optimizer and training losses identical"
        print(f"{name}: exit codes {codes}; {same}, evaluation losses {apart:.1g} apart at most")
        for line in (out / "metrics.jsonl").read_text().splitlines()[-2:]:
            print("   ", line)
        sys.stdout.flush()
        self.failed |= bool(differing or any(codes) or apart > 1e-6)

    def show(self) -> None:
        """What the hosts said, without torchrun's tables."""
        for name in NAMES:
            lines = (self.folder / f"{name}.log").read_text().splitlines()
            telling = [line for line in lines if re.search("stopped|labelflow:|Error|Signal", line)]
            for line in [*telling[:3], *telling[-2:]] if len(telling) > 5 else telling:
                print(f"    {name}: {line[:200]}")

    @staticmethod
    def updates(out: Path) -> int:
        lines = out / "metrics.jsonl"
        return len(lines.read_text().splitlines()) if lines.exists() else 0

    @staticmethod
    def checkpoint(out: Path) -> str:
        return max((path.name for path in (out / "checkpoints").glob("0*")), default="none")


def told(hosts: Hosts, running: list[Popen[str]]) -> None:
    """SIGTERM to torchrun on one host stops both."""
    running[1].send_signal(signal.SIGTERM)
    print("    exit codes", [host.wait(120) for host in running])


def killed(hosts: Hosts, running: list[Popen[str]]) -> None:
    """All that runs on the second host dies; the first one notices."""
    hosts.kill(1)
    await_end(hosts, running, 120)


def worker_killed(hosts: Hosts, running: list[Popen[str]]) -> None:
    """What torchrun has started on the second host dies; torchrun starts it again, on both."""
    for process in hosts.processes(1):
        if process != running[1].pid:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def cut(hosts: Hosts, running: list[Popen[str]]) -> None:
    """The cable is pulled. Somebody ends what still hangs after two minutes, and plugs it in again."""
    hosts.plug("down")
    await_end(hosts, running, 120)
    hosts.plug("up")


def await_end(hosts: Hosts, running: list[Popen[str]], seconds: int) -> None:
    begin, left = time.monotonic(), dict(zip(NAMES, running, strict=True))
    while left and time.monotonic() - begin < seconds:
        time.sleep(0.5)
        for name in [name for name, host in left.items() if host.poll() is not None]:
            print(f"    {name} ended after {time.monotonic() - begin:.0f} s: {left.pop(name).returncode}")
    for name, host in left.items():
        print(f"    {name} still waits after {seconds} s, and is killed")
        hosts.kill(NAMES.index(name))
        host.wait()


SCENES = {
    "torchrun": (TRAINING, Proof.torchrun, None, 2),
    "accelerate": (TRAINING, Proof.accelerate, None, 2),
    "told": (LONG, Proof.torchrun, told, 2),
    "killed": (LONG, Proof.torchrun, killed, 2),
    "fewer": (LONG, Proof.torchrun, killed, 1),
    "restarted": (LONG, partial(Proof.torchrun, restarts=1), worker_killed, 0),
    "cut": (LONG, Proof.torchrun, cut, 2),
}


def main(folder: Path, *names: str) -> int:
    folder.mkdir(parents=True)
    with Hosts(folder) as hosts:
        proof = Proof(folder, hosts)
        for name in names or SCENES:
            proof.run(name, *SCENES[name])
    return int(proof.failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
