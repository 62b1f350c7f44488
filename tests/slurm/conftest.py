"""A real Slurm of one node on this machine: munge, a controller and a node, all below one folder.

Debian's packages slurm-wlm and munge have the programs; starting them needs root.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol")
SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait=5
SchedulerParameters=sched_interval=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=2000 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def free_ports(count):
    """Numbers of ports that nothing uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Starts Slurm; skips where its programs are not installed, or not for this user."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no {missing[0]} here" if missing else "only root can start Slurm")
    # munge refuses sockets below folders that others may write to.
    folder = Path("/run") / f"hybridlab-slurm-{os.getpid()}"
    munge = pwd.getpwnam("munge")
    for part in (folder, folder / "state", folder / "spool"):
        part.mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    for path in (folder, folder / "munge.key"):
        os.chown(path, munge.pw_uid, munge.pw_gid)
    settings = folder / "slurm.conf"
    host, cores = socket.gethostname().split(".")[0], os.cpu_count()
    settings.write_text(SETTINGS.format(folder=folder, host=host, cores=cores, ports=free_ports(2)))
    paths = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "log-file": "munged.log"}
    options = [f"--{name}={folder / file}" for name, file in {**paths, "seed-file": "munged.seed"}.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(settings))
        subprocess.run(["runuser", "-u", "munge", "--", "munged", *options], check=True)
        for program in ("slurmctld", "slurmd"):
            subprocess.run([program, "-f", str(settings), "-c"], check=True)
        deadline = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout:
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()
            time.sleep(0.5)
        yield
        for name in ("slurmd.pid", "slurmctld.pid", "munge.pid"):
            os.kill(int((folder / name).read_text()), signal.SIGTERM)
        time.sleep(1)
        shutil.rmtree(folder, ignore_errors=True)
