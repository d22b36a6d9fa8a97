"""Seconds from POST to a ready server on a real Slurm, beside stock batchspawner.

Prints two rows as JSON: an EDF without an image, which is the peer's work as well, and one with an image. A
hub for each spawner runs as root, jobs as one plain user, whose servers take turns. Python and lab are those
of one runtime folder, byte-compiled; the peer's server runs without Gipfel's extension. The peer is the class
of `SlurmSpawner` that takes the nodes' addresses from its configuration, for no resolver knows these names.
"""

import compileall
import contextlib
import importlib.util
import itertools
import json
import py_compile
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Separate programs, in a directory that is not a package.
sys.path.insert(0, str(HERE.parent / "cluster"))

from hub_process import HubProcess, proxy_folder  # noqa: E402
from kept_runtime import runtime_for_tests  # noqa: E402
from one_machine import OneMachine, missing, wait_until  # noqa: E402
from parts.containers import make_root, pack  # noqa: E402
from unix_users import UnixUser, unix_user  # noqa: E402

from gipfel_cluster.runtime import Runtime  # noqa: E402

BOUND = 1.1
ROUNDS = 12
LEFT_OUT = 77
LIMIT_S = 120.0
_LOOK_S = 0.05
_PROJECT = str(HERE.parents[1] / "jupyterhub_config.py")
_PEER_CONFIG = """\
exec(compile(open({project!r}).read(), {project!r}, 'exec'), {{**globals(), '__file__': {project!r}}})
from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub.apihandlers import default_handlers
# Which Gipfel takes away, since a server's token may set any attribute of its spawner there.
default_handlers[:] = [each for each in default_handlers if each[0] != '/api/batchspawner']
default_handlers.append(('/api/batchspawner', BatchSpawnerAPIHandler))
c.JupyterHub.spawner_class = 'batchspawner.MultiSlurmSpawner'
c.MultiSlurmSpawner.daemon_resolver = {addresses!r}
c.BatchSpawnerBase.exec_prefix = 'runuser -u {{username}} --'
c.BatchSpawnerBase.batchspawner_singleuser_cmd = {wrapper!r}
c.BatchSpawnerBase.req_partition = 'normal'
c.BatchSpawnerBase.req_runtime = '00:20:00'
c.Spawner.env_keep = ['PATH', 'LANG', 'LC_ALL', 'SLURM_CONF']
c.Spawner.cmd = [{singleuser!r}]
c.Spawner.args = ['--ServerApp.jpserver_extensions=gipfel_extension=False']
"""
_WRAPPER = """\
#!{python} -I
import sys

sys.path.append({packages!r})
from batchspawner.singleuser import main

sys.exit(main())
"""


@dataclass(frozen=True)
class Side:
    """A hub, and what its user asks for."""

    name: str
    hub: HubProcess
    options: Mapping[str, Any]


def main(rounds: int) -> int:
    """Measure; 1 where a bound does not hold."""
    reason = missing()
    if reason:
        print(reason, file=sys.stderr)
        return LEFT_OUT
    runtime = runtime_for_tests()
    with _sides(runtime) as (user, cluster, sides):
        seconds: dict[str, list[float]] = {side.name: [] for side in sides}
        # Every order, so that none always runs after the same other one, whose files are cached.
        orders = list(itertools.permutations(sides))
        pauses = random.Random(1)
        for number in range(rounds + 1):
            for side in orders[number % len(orders)]:
                # Slurm's scheduler runs about once a second: without this pause, each spawner would always
                # submit in the same part of that second.
                time.sleep(pauses.uniform(0, 1))
                taken = _start(side, user, cluster)
                if number:
                    seconds[side.name].append(taken)
            print({name: round(each[-1], 2) for name, each in seconds.items() if each}, file=sys.stderr)
    rows = [_row(name, seconds[name], seconds["peer"]) for name in ("post-to-ready", "post-to-ready-image")]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _row(name: str, ours: list[float], peer: list[float]) -> dict[str, object]:
    ratio = statistics.median(ours) / statistics.median(peer)
    values = {"ours": statistics.median(ours), "peer": statistics.median(peer), "unit": "s"}
    return {"name": name, **values, "ratio": ratio, "bound": BOUND, "holds": ratio <= BOUND}


@contextlib.contextmanager
def _sides(runtime: Path) -> Iterator[tuple[UnixUser, OneMachine, list[Side]]]:
    folder = Path(tempfile.mkdtemp(prefix="gipfel-b-", dir="/var/tmp"))
    folder.chmod(0o755)
    # Plain users may mount images: what a site's udev rule does.
    Path("/dev/fuse").chmod(0o666)
    make_root(folder / "root")
    image = pack(folder / "root", folder / "image.sqsh")
    try:
        with contextlib.ExitStack() as stack:
            user = stack.enter_context(unix_user("p", folder))
            user.write(".edf/host.toml", "[env]\n")
            user.write(".edf/image.toml", f'image = "{image}"\n')
            cluster = stack.enter_context(OneMachine(folder / "slurm", nodes=1, gpus=0))
            ours = stack.enter_context(_hub(folder / "ours", runtime, cluster))
            config = _peer_config(folder, runtime, cluster)
            peer = stack.enter_context(_hub(folder / "peer", runtime, cluster, config))
            for hub in (ours, peer):
                hub.call("POST", f"/users/{user.name}").raise_for_status()
            asked = {"gpus": 0, "partition": "normal", "time": "00:20:00"}
            yield (
                user,
                cluster,
                [
                    Side("post-to-ready", ours, {**asked, "edf": "host"}),
                    Side("peer", peer, {}),
                    Side("post-to-ready-image", ours, {**asked, "edf": "image"}),
                ],
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hub(state: Path, runtime: Path, cluster: OneMachine, config: Path | None = None) -> HubProcess:
    state.mkdir(mode=0o700)
    environment = {
        **cluster.environment,
        "GIPFEL_SCHEDULER": "slurm",
        "GIPFEL_RUNTIME": str(runtime),
        "GIPFEL_HUB_IP": cluster.hub_address,
    }
    return HubProcess(state, environment, proxy=proxy_folder(), config=config)


def _peer_config(folder: Path, runtime: Path, cluster: OneMachine) -> Path:
    """Write the peer's configuration, and its package beside the runtime, compiled as the runtime is."""
    found = importlib.util.find_spec("batchspawner")
    assert found
    assert found.origin
    packages = folder / "packages"
    package = packages / "batchspawner"
    shutil.copytree(Path(found.origin).parent, package, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(package, quiet=2, invalidation_mode=unchecked)
    wrapper = folder / "batchspawner-singleuser"
    wrapper.write_text(_WRAPPER.format(python=Runtime.load(str(runtime)).python, packages=str(packages)))
    wrapper.chmod(0o755)
    config = folder / "peer_config.py"
    config.write_text(
        _PEER_CONFIG.format(
            project=_PROJECT,
            addresses=cluster.addresses,
            wrapper=str(wrapper),
            singleuser=str(runtime / "bin/jupyterhub-singleuser"),
        )
    )
    return config


def _start(side: Side, user: UnixUser, cluster: OneMachine) -> float:
    """Start a server and end it; returns the seconds until it was ready."""
    path = f"/users/{user.name}"

    def server() -> dict[str, Any] | None:
        servers: dict[str, dict[str, Any]] = side.hub.call("GET", path).json()["servers"]
        return servers.get("")

    began = time.monotonic()
    answer = side.hub.call("POST", f"{path}/server", json=dict(side.options))
    if answer.status_code not in {201, 202}:
        raise SystemExit(f"{side.name}: {answer.text}\n{side.hub.last_words()}")
    while not (model := server() or {}).get("ready"):
        if time.monotonic() > began + LIMIT_S or not model:
            raise SystemExit(f"{side.name} did not start: {model}\n{side.hub.last_words(40)}")
        time.sleep(_LOOK_S)
    seconds = time.monotonic() - began
    side.hub.call("DELETE", f"{path}/server")
    wait_until(lambda: not server(), LIMIT_S)
    jobs = ["squeue", "--noheader", "--format=%A"]
    if not wait_until(lambda: not cluster.call(jobs).strip(), LIMIT_S):
        raise SystemExit(f"{side.name}: its job does not end.")
    return seconds


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
