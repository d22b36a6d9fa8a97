"""Staging on four nodes of a Slurm on this machine, beside every node's own ``cp`` and beside ``sbcast``.

Prints eight rows as JSON, the last three of 24 MB, whose time is mostly that of the start. The nodes mount a
shared directory each by itself with sshfs; its server counts the bytes, and sends 60 MB/s to all nodes
together; each node's link passes 125 MB/s. Times are of whole commands. `sbcast` checks nothing, and does not
know what is there already; `sha256sum` on each node is the least that a check takes. The nodes share this
machine's cores, and their network is not a cluster's.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "cluster")]

import one_machine  # noqa: E402 - of tests/cluster
import sftp_share  # noqa: E402
from kept_runtime import runtime_for_tests  # noqa: E402
from one_machine import OneMachine, wait_until  # noqa: E402
from run import LEFT_OUT  # noqa: E402
from sftp_share import SftpShare  # noqa: E402
from unix_users import UnixUser, unix_user  # noqa: E402

_NODES = 4
_RATE, _LINK = 60e6, 125e6
_LIMIT_S = 200
#: Of the data for the bytes; of the peer for the times.
_BYTES_BOUND = 1.1
_PEERS = {"cp": "cp on each node", "sbcast": "sbcast", "checked": "sbcast and its hash"}
_BOUNDS = {"cp": 1.0, "sbcast": 2.0, "checked": 2.0}
#: Megabytes, repetitions, and the bounds of small data.
_SMALL, _REPEATS = 24, 3
_SMALL_BOUNDS = {"cp": 1.5, "sbcast": 2.5, "checked": 2.0}


def main(megabytes: int) -> int:
    """Measure; 1 where a bound does not hold."""
    reason = one_machine.missing() or sftp_share.missing()
    if reason:
        print(reason, file=sys.stderr)
        return LEFT_OUT
    runtime = runtime_for_tests()
    root = Path(tempfile.mkdtemp(prefix="gipfel-b-", dir="/var/tmp"))
    root.chmod(0o755)
    Path("/dev/fuse").chmod(0o666)
    (root / "served").mkdir(mode=0o755)
    for name, size in (("data.bin", megabytes), ("small.bin", _SMALL)):
        (root / "served" / name).write_bytes(os.urandom(size * 1_000_000))
        (root / "served" / name).chmod(0o644)
    try:
        with OneMachine(root / "slurm", nodes=_NODES) as cluster, unix_user("b", root) as user:
            share = SftpShare(cluster, root / "served", root / "shared", rate=_RATE, link=_LINK)
            with share.mounted():
                large = _measure_all(user, cluster, share, _commands(runtime, share.at / "data.bin"))
                commands = _commands(runtime, share.at / "small.bin")
                small = [_measure_all(user, cluster, share, commands) for _ in range(_REPEATS)]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    size = megabytes * 1_000_000
    print(f"Sent for sbcast, of the data: {large['sbcast'][1] / size:.2f}.", file=sys.stderr)
    times = {name: each[0] for name, each in large.items()}
    starts = {name: statistics.median(each[name][0] for each in small) for name in times}
    rows = [
        _row("stage: bytes sent, of the data", large["stage"][1] / 1e6, size / 1e6, "MB", _BYTES_BOUND),
        _row(
            f"stage: bytes sent, peer {_PEERS['cp']} ({large['cp'][1] / size:.2f} x the data)",
            large["stage"][1] / 1e6,
            large["cp"][1] / 1e6,
            "MB",
            _BYTES_BOUND / _NODES,
        ),
        *_time_rows("stage: time", times, _BOUNDS),
        *_time_rows(f"stage: time of {_SMALL} MB", starts, _SMALL_BOUNDS),
    ]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _measure_all(
    user: UnixUser, cluster: OneMachine, share: SftpShare, commands: dict[str, str]
) -> dict[str, tuple[float, int]]:
    return {name: _measure(user, cluster, share, name, command) for name, command in commands.items()}


def _time_rows(title: str, times: dict[str, float], bounds: dict[str, float]) -> list[dict[str, object]]:
    return [
        _row(f"{title}, peer {text}", times["stage"], times[name], "s", bounds[name])
        for name, text in _PEERS.items()
    ]


def _commands(runtime: Path, data: Path) -> dict[str, str]:
    on_all = f"srun --overlap --nodes={_NODES} --ntasks={_NODES}"
    return {
        "cp": f"{on_all} cp {data} /dev/shm/copy; status=$?; {on_all} rm /dev/shm/copy",
        "sbcast": f"sbcast --force {data} /dev/shm/copy; status=$?; {on_all} rm /dev/shm/copy",
        "checked": f"sbcast --force {data} /dev/shm/copy && {on_all} sha256sum /dev/shm/copy; status=$?; "
        f"{on_all} rm /dev/shm/copy",
        "stage": f"{runtime}/bin/gipfel data stage --to memory {data}; status=$?",
    }


def _measure(
    user: UnixUser, cluster: OneMachine, share: SftpShare, name: str, command: str
) -> tuple[float, int]:
    """Return the seconds of a command in a job on all nodes, and the bytes that were sent for it."""
    share.reset()
    (user.home / name).unlink(missing_ok=True)
    timed = command.replace("; status=$?", "; status=$?; date +%s.%N > end", 1)
    script = f"#!/bin/sh\ndate +%s.%N > begin\n{timed}\necho $status > {name}.new; mv {name}.new {name}\n"
    path = user.write(f"{name}.sh", script, 0o700)
    settings = {
        **cluster.environment,
        "PATH": "/usr/bin:/bin",
        "HOME": str(user.home),
        "GIPFEL_CLUSTER": "bench",
    }
    words = ["env", "-i", f"--chdir={user.home}", *(f"{key}={value}" for key, value in settings.items())]
    job = user.run(*words, "sbatch", "--parsable", f"--nodes={_NODES}", f"--output={name}.log", str(path))
    if not wait_until((user.home / name).exists, _LIMIT_S) or (user.home / name).read_text().strip() != "0":
        raise SystemExit(f"{name} failed: {job.stderr} {(user.home / f'{name}.log').read_text()[-2000:]}")
    sent = share.total()
    begin, end = (float((user.home / each).read_text()) for each in ("begin", "end"))
    wait_until(lambda: not cluster.call(["squeue", "--noheader"]).strip(), 60)
    time.sleep(1)
    return end - begin, sent


def _row(name: str, ours: float, peer: float, unit: str, bound: float) -> dict[str, object]:
    ratio = ours / peer
    return {"name": name, "ours": ours, "peer": peer, "unit": unit, "ratio": ratio, "bound": bound,
            "holds": ratio <= bound}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 240))
