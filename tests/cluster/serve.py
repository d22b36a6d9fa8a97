"""A hub on a real Slurm on this machine, until Ctrl-C; the command of ``make slurm``."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from cluster_command import ended_by_signals
from hub_process import end_proxy
from kept_runtime import runtime_to_serve
from one_machine import OneMachine, missing

from gipfel_cluster.model import GipfelError

_REPOSITORY = Path(__file__).resolve().parents[2]
_CONFIGURATION = _REPOSITORY / "jupyterhub_config.py"
_END_LIMIT_S = 30.0
_FIRST_PLAIN_UID = 1000


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _what_next(cluster: OneMachine) -> None:
    """Print what a person does now; the configuration prints address and password after it."""
    names = [entry.pw_name for entry in pwd.getpwall() if _FIRST_PLAIN_UID <= entry.pw_uid < 60000]
    users = f"any unix user of this machine: {', '.join([*names[:4], 'root'])}"
    print(flush=True)
    _say(f"Slurm: {len(cluster.node_names)} nodes ({', '.join(cluster.node_names)}), {cluster.gpus} GPUs")
    _say("each, in name only. Ask it from another terminal:")
    _say(f"  export SLURM_CONF={cluster.environment['SLURM_CONF']}; sinfo")
    _say(f"Log in as {users}. Ctrl-C ends it all.")
    fuse = Path("/dev/fuse")
    if fuse.exists() and not fuse.stat().st_mode & stat.S_IWOTH:
        _say("Plain users can't mount images here, only root can: chmod 666 /dev/fuse")


def _serve(cluster: OneMachine, state: Path, runtime: Path) -> int:
    """Run the hub until it ends or a signal comes; returns its exit status."""
    environment = {
        **os.environ,
        **cluster.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
        "GIPFEL_STATE": str(state),
        "GIPFEL_SCHEDULER": "slurm",
        "GIPFEL_HUB_IP": cluster.hub_address,
        "GIPFEL_RUNTIME": str(runtime),
    }
    hub = [sys.executable, "-m", "jupyterhub", "-f", str(_CONFIGURATION)]
    # A separate session: a terminal's Ctrl-C comes to us alone, and we end things in their order.
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", "--", *hub],
        env=environment,
        cwd=state,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait()
    finally:
        process.terminate()
        try:
            process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        end_proxy(state)


def main() -> int:
    """Serve until Ctrl-C, SIGTERM or SIGHUP; returns the exit status, 1 where this machine can't."""
    reason = missing()
    if reason:
        print(reason, file=sys.stderr)
        return 1
    with ended_by_signals():
        folder: Path | None = None
        try:
            runtime = runtime_to_serve(_say)
            # A new Slurm counts its jobs from 1, so that a hub that remembers older ones would be wrong.
            folder = Path(tempfile.mkdtemp(prefix="gipfel-", dir="/var/tmp"))
            folder.chmod(0o755)
            state = folder / "hub"
            state.mkdir(mode=0o700)
            with OneMachine(folder / "slurm") as cluster:
                _what_next(cluster)
                return _serve(cluster, state, runtime)
        except GipfelError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
