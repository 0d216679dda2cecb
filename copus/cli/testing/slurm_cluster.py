"""A real SLURM cluster on this machine, for tests: munged, slurmctld and one slurmd per virtual node, from Debian's
packages, as the current user and in a temporary folder.

    with SlurmCluster(nodes=2) as cluster:
        cluster.run("srun", "-n", "4", "hostname")

All of it ends with the `with` statement. The daemons also end when the test is killed.
"""

import ctypes
import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from free_port import free_port

DEADLINE = 30  # seconds for one answer or end of the daemons, far more than needed
MARKER = "COPUS_SLURM_TEST"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])  # where the daemons are
# Without cgroups, accounting and limits, which need privileges. Credentials are short-lived because SLURM delays a
# requeued job for their lifetime.
CONFIGURATION = """
ClusterName=copus
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
TmpFS={folder}/tmp-%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES
"""
NODE = "NodeName=node{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8\n"


def end_with_parent() -> None:
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


class SlurmCluster:
    """Raises unittest.SkipTest, with the reason, if SLURM is not installed or does not start."""

    def __init__(self, nodes: int):
        self._nodes = nodes
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> "SlurmCluster":
        missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
        if missing:
            raise unittest.SkipTest(f"SLURM is not installed: there is no {', '.join(missing)}")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="copus_slurm_"))
        own = {"PATH": SEARCHED, "SLURM_CONF": str(self.folder / "slurm.conf"), MARKER: str(self.folder)}
        # A test that itself runs inside a SLURM job must not look like part of that job.
        others = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        self.environment = {**others, **own}
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        self._end()

    def start(self, *command: str, variables=(), **options) -> subprocess.Popen:
        return subprocess.Popen(command, env={**self.environment, **dict(variables)}, text=True, errors="replace",
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def run(self, *command: str, timeout: float = DEADLINE, **options) -> subprocess.CompletedProcess:
        process = self.start(*command, **options)
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def answer(self, *command: str) -> str:
        """Returns the output of a SLURM command."""
        result = self.run(*command)
        if result.returncode != 0:
            raise AssertionError(f"{command}: {result.stdout}{result.stderr}\n{self._logs()}")
        return result.stdout

    def _start(self) -> None:
        self.folder.chmod(0o755)  # munged refuses a folder that others cannot enter
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        distinct = set()
        while len(distinct) < 1 + self._nodes:
            distinct.add(free_port())
        ports = list(distinct)
        host = socket.gethostname().split(".")[0]
        names = [f"node{index}" for index in range(self._nodes)]
        for name in ["state", *(f"{kind}-{node}" for kind in ("spool", "tmp") for node in names)]:
            (self.folder / name).mkdir()
        text = "".join(NODE.format(index=index, host=host, port=ports[1 + index]) for index in range(self._nodes))
        text += CONFIGURATION.format(host=host, ports=ports, user=getpass.getuser(), folder=self.folder)
        (self.folder / "slurm.conf").write_text(text)
        self._start_daemon("munged", "--foreground", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                           f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed")
        self._wait_for(lambda: (self.folder / "munge.socket").exists(), "munged has no socket")
        self._start_daemon("slurmctld", "-D")
        for name in names:
            self._start_daemon("slurmd", "-D", "-N", name)

        def all_idle():
            states = self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
            return states == ["idle"] * self._nodes
        self._wait_for(all_idle, "the nodes do not become idle")

    def _start_daemon(self, *command: str) -> None:
        log = self.folder / f"{len(self._daemons)}-{command[0]}.log"
        with log.open("w") as output:
            self._daemons.append(subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=output,
                                                  stderr=output, preexec_fn=end_with_parent))

    def _wait_for(self, condition, failure: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            ended = [daemon.args[0] for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                failure = f"{ended[0]} ended" if ended else f"{failure} within {DEADLINE} s"
                raise unittest.SkipTest(f"SLURM does not start here: {failure}\n{self._logs()}")
            time.sleep(0.05)

    def _logs(self) -> str:
        """The end of each daemon's log."""
        ends = (f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(self.folder.glob("*.log")))
        return "\n".join(ends)

    def processes(self) -> list[int]:
        """All processes that the cluster or its jobs started, found by an environment variable."""
        mark = f"{MARKER}={self.folder}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark in pathlib.Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
            except OSError:  # it has just ended, or belongs to another user
                pass
        return found

    def cancel_all(self) -> None:
        """Kills all jobs at once, without SLURM's grace period, and waits until they are gone."""
        deadline = time.monotonic() + DEADLINE
        while self.answer("squeue", "--noheader"):
            if time.monotonic() > deadline:
                raise AssertionError(f"jobs do not end within {DEADLINE} s\n{self._logs()}")
            self.answer("scancel", "--signal=KILL", "--full", f"--user={getpass.getuser()}")
            self.answer("scancel", f"--user={getpass.getuser()}")
            time.sleep(0.1)

    def _end(self) -> None:
        """Ends the daemons, and all processes that they or jobs left."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and (any(daemon.poll() is None for daemon in self._daemons)
                                               or self.processes()):
            time.sleep(0.05)
        for process in self.processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for daemon in self._daemons:
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
