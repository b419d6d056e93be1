"""Runs slurmctld, slurmd and munged from Debian's packages for tests, in a new folder and on free ports."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from agents import eventually, free_port

PROJECT = Path(__file__).parents[1]
PACKAGES = PROJECT / ".gpumon" / "slurm"
PLUGINS = PACKAGES / "usr" / "lib" / f"{os.uname().machine}-linux-gnu" / "slurm-wlm"
CONFIGURATION = """\
ClusterName=gpumon
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdTimeout=15
SchedulerParameters=sched_interval=5
ReturnToService=2
RebootProgram=/bin/true
HealthCheckProgram={program}
HealthCheckInterval=1
HealthCheckNodeState=ANY
Prolog={hooks}/prolog
Epilog={hooks}/epilog
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=n01 NodeHostname=localhost NodeAddr=127.0.0.1 Port={node} CPUs=4
NodeName=n[02-{nodes:02}] NodeHostname=localhost NodeAddr=127.0.0.1 Port={unused}
PartitionName=gpu Nodes=n[01-{nodes:02}] Default=YES
"""


class SlurmCluster:
    """A controller, and slurmd of node n01, which runs `program` each second; the other nodes never answer.

    The node runs up to four jobs. Their prolog and epilog are the files of these names in the folder `hooks`. A
    requeued job starts after cred_expire: slurmd may take an earlier start for the same run, and omit its prolog.
    """

    def __init__(self, program: Path, nodes: int, hooks: Path) -> None:
        subprocess.run([PROJECT / "scripts" / "slurm.sh", PACKAGES], check=True, timeout=300)
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket needs a short path
        self.environment = {
            "LD_LIBRARY_PATH": f"{PLUGINS.parent}:{PLUGINS}",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{PACKAGES}/usr/bin:{os.environ['PATH']}",
        }
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(64))
        (self.folder / "munge.key").chmod(0o400)
        ports = {name: free_port() for name in ("controller", "node", "unused")}
        values = {
            "folder": self.folder,
            "plugins": PLUGINS,
            "program": program,
            "hooks": hooks,
            "user": getpass.getuser(),
        }
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(nodes=nodes, **values, **ports))
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons, and wait until node n01 is idle."""
        files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        self._start("munged", "--foreground", "--force", *(f"--{name}={self.folder}/{f}" for name, f in files.items()))
        eventually((self.folder / "munge.sock").exists)
        self._start("slurmctld-wlm", "-D")
        self._start("slurmd-wlm", "-D", "-N", "n01", "-d", str(PACKAGES / "usr" / "sbin" / "slurmstepd-wlm"))
        eventually(lambda: self.state("n01") == "IDLE")

    def _start(self, daemon: str, *arguments: str) -> None:
        with (self.folder / f"{daemon}.log").open("wb") as log:
            command = [str(PACKAGES / "usr" / "sbin" / daemon), *arguments]
            started = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.folder)
        self._daemons.append(started)

    def scontrol(self, *arguments: str) -> str:
        """Run scontrol and return its output."""
        return self.run("scontrol", *arguments)

    def run(self, *command: str) -> str:
        """Run a command of Slurm and return its output."""
        ran = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def state(self, node: str) -> str:
        return self._field(node, "State").partition(" ")[0]

    def reason(self, node: str) -> str:
        """Return the reason of a node without its author; an empty string if it has none."""
        return self._field(node, "Reason").rpartition(" [")[0]

    def _field(self, node: str, name: str) -> str:
        return self.scontrol("--oneliner", "show", "node", node).partition(f" {name}=")[2]

    def stop(self) -> None:
        """Stop the daemons and remove their folder."""
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder)
