"""Slurm commands per minute and CPU of a hub with 1 000 servers, 200 of them queued, beside batchspawner.

Prints two rows as JSON. For the commands both spawners run in this process, one after the other, with
JupyterHub's own users and polling, on commands that count themselves and answer at once. The CPU of ours is
that of a real hub's process, with its database, routes and checks; the peer's is that of this process, which
has none of these. A command's own CPU is not the hub's.
"""

import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from batchspawner import SlurmSpawner
from jupyterhub import orm
from jupyterhub.app import JupyterHub
from jupyterhub.objects import Hub
from jupyterhub.roles import create_role, get_default_roles
from jupyterhub.user import User
from parts.full_hub import hub_cpu
from sqlalchemy.orm import object_session

from gipfel_cluster.scheduler.machine import current_user_name
from gipfel_spawner import EDFSpawner

STARTING, RUNNING = 200, 800
SETTLE_S, WINDOW_S = 20.0, 30.0
CALLS_BOUND, CPU_BOUND = 100.0, 0.2
_FIRST = 10_000


def main() -> int:
    """Measure; 1 where a bound does not hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_commands(folder)
        os.environ["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
        os.environ["HOME"] = name
        ours = asyncio.run(_measure(folder, _ours))
        peer = asyncio.run(_measure(folder, _peer))
        cpu = _real_hub(folder)
    print(f"In one process ours takes {ours[1]:.3f} cores, a whole hub {cpu:.3f}.", file=sys.stderr)
    fewer = peer[0] / ours[0]
    rows = [
        {"name": "slurm-calls (peer/ours)", "ours": ours[0], "peer": peer[0], "unit": "/min", "ratio": fewer,
         "bound": CALLS_BOUND, "holds": fewer >= CALLS_BOUND},
        {"name": f"hub-cpu (of {CPU_BOUND:g} cores)", "ours": cpu, "peer": peer[1], "unit": "cores",
         "ratio": cpu / CPU_BOUND, "bound": 1.0, "holds": cpu <= CPU_BOUND},
    ]  # fmt: skip
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _real_hub(folder: Path) -> float:
    """CPU of a hub whose first servers run, so that the others are the ones that start."""
    (folder / "next").write_text(str(_FIRST))
    (folder / "tokens").unlink()
    (folder / "jobs").write_text(_jobs(queued=range(_FIRST + RUNNING, _FIRST + RUNNING + STARTING)))
    return hub_cpu(
        folder, current_user_name(), running=RUNNING, queued=STARTING, settle_s=SETTLE_S, window_s=WINDOW_S
    )


def _jobs(*, queued: range) -> str:
    """Return what squeue says of all jobs."""
    rows = [
        f"{job}|PENDING||2030-01-01T00:00:00|0|Priority|normal|1|gres:gpu:4|"
        if job in queued
        else f"{job}|RUNNING|node01|N/A|0|None|normal|1|gres:gpu:4|"
        for job in range(_FIRST, _FIRST + STARTING + RUNNING)
    ]
    return "\n".join(rows) + "\n"


def _write_commands(folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "next").write_text(str(_FIRST))
    last = _FIRST + STARTING
    (folder / "jobs").write_text(_jobs(queued=range(_FIRST, last)))
    count = f"echo >> {folder}/calls\n"
    # Ours asks for its own format; the peer for one job's state and node.
    squeue = f'case "$*" in *Format*) cat {folder}/jobs; exit;; esac\n'
    squeue += f'[ "$3" -lt {last} ] && echo "PENDING " || echo "RUNNING node01"\n'
    sbatch = f"cat > /dev/null; exec 9> {folder}/lock; flock 9\n"
    sbatch += f"read n < {folder}/next; echo $((n + 1)) > {folder}/next; echo $n\n"
    sbatch += f"echo $JUPYTERHUB_API_TOKEN >> {folder}/tokens\n"
    scripts = {
        "squeue": squeue,
        "sbatch": sbatch,
        "scontrol": "echo NodeName=node01 NodeAddr=127.0.0.1\n",
        "sinfo": "echo 'normal|normal*|up|1-00:00:00|2|idle|gpu:gh200:4'\n",
    }
    for name in ("squeue", "sbatch", "sinfo", "scontrol", "scancel", "sacctmgr"):
        path = folder / "bin" / name
        path.write_text("#!/bin/sh\n" + count + scripts.get(name, ""))
        path.chmod(0o755)


def _user() -> User:
    app = JupyterHub(db_url="sqlite:///:memory:")
    app.log.setLevel(logging.CRITICAL)
    app.init_db()
    for role in get_default_roles():
        create_role(app.db, role)
    entry = orm.User(name=current_user_name())
    app.db.add(entry)
    app.db.commit()
    return User(entry, {})


def _ours(user: User, number: int) -> Any:
    user._new_orm_spawner(f"s{number}", "")
    spawner = user._new_spawner(f"s{number}", spawner_class=EDFSpawner, hub=Hub(), oauth_client_id="x")
    spawner.scheduler, spawner.python = "slurm", sys.executable
    spawner.state_folder = os.environ["HOME"]
    return spawner


def _peer(user: User, number: int) -> Any:
    user._new_orm_spawner(f"s{number}", "")
    spawner = user._new_spawner(f"s{number}", spawner_class=SlurmSpawner, hub=Hub(), oauth_client_id="x")
    spawner.exec_prefix, spawner.cmd = "", ["jupyterhub-singleuser"]
    # Its own commands, found without the login shell's PATH.
    programs = Path(os.environ["HOME"]) / "bin"
    spawner.batch_submit_cmd = f"{programs}/{spawner.batch_submit_cmd}"
    spawner.batch_query_cmd = f"{programs}/{spawner.batch_query_cmd}"
    return spawner


async def _measure(folder: Path, make: Callable[[User, int], Any]) -> tuple[float, float]:
    """Calls a minute, and CPU seconds of this process a second."""
    (folder / "next").write_text(str(_FIRST))
    user = _user()
    spawners = [make(user, number) for number in range(STARTING + RUNNING)]
    starts: list[asyncio.Future[Any]] = []
    for spawner in spawners[:STARTING]:
        spawner.api_token = "x"
        starts.append(asyncio.ensure_future(_as_awaitable(spawner.start())))
        while not spawner.job_id:
            assert not starts[-1].done(), starts[-1].exception()
            await asyncio.sleep(0.01)
    for number, spawner in enumerate(spawners[STARTING:], _FIRST + STARTING):
        spawner.job_id, spawner.job_status = str(number), "RUNNING node01"
        spawner.start_polling()
    if make is _ours:
        # As at the end of each start; the peer queries each job again at every poll.
        await asyncio.gather(*(_as_awaitable(spawner.poll()) for spawner in spawners[STARTING:]))
    await asyncio.sleep(SETTLE_S)
    calls = folder / "calls"
    before, cpu, began = calls.stat().st_size, time.process_time(), time.monotonic()
    await asyncio.sleep(WINDOW_S)
    seconds = time.monotonic() - began
    result = ((calls.stat().st_size - before) * 60 / seconds, (time.process_time() - cpu) / seconds)
    assert not any(each.done() for each in starts)
    for each in starts:
        each.cancel()
    for spawner in spawners:
        spawner.stop_polling()
    await asyncio.gather(*starts, return_exceptions=True)
    for each in asyncio.all_tasks() - {asyncio.current_task()}:
        each.cancel()
    session = object_session(user.orm_user)
    if session is not None:
        session.close()
    return result


async def _as_awaitable(start: Awaitable[Any]) -> Any:
    return await start


if __name__ == "__main__":
    if not shutil.which("sh"):
        sys.exit("No shell.")
    sys.exit(main())
