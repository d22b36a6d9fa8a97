"""Supervise a service in its job: start its parts, wait until they are ready, open the front door, end all.

``python -m gipfel_extension.services.supervisor DIRECTORY`` runs it; `start.py` submits a job with this
command. Parts use Unix sockets in a private directory: the front door alone listens on a port.

`Handover` decides which supervisor owns the directory while those of two jobs of a service run.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from gipfel_cluster.edf.gate import Gate
from gipfel_cluster.environment import without_tokens
from gipfel_cluster.hub_requests import report_port
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange, bind_port
from gipfel_cluster.process.tree import Process, adopt_orphans, end_descendants
from gipfel_cluster.regular_files import last_line
from gipfel_cluster.runs import ScratchFolder
from gipfel_cluster.workloads.directory import STOP, write_state

from .access import Access, HubAccess, TokenAccess, report_activity
from .blueprint import Environment, Part
from .directory import HUB, SECRETS, Handover, read_service_state, read_spec, read_token, storage_directory
from .front_door import FrontDoor, Route
from .plan import gated_part, make_environment, parameter_references, resolve_part
from .references import ports_of
from .upstream import accepts_connections, is_ready
from .workers import JobNodes, Workers

_POLL_S = 0.2
_HEARTBEAT_S = 10.0
_PROBE_S = 5.0
_MAX_RUNS = 200
#: Port of a part that can listen only on TCP; in its own network namespace, every port is free.
_PORT = "8080"
#: First of the consecutive ports in that namespace that lead to other parts.
_FIRST_OTHER_PORT = 8101
_PRIVATE_NETWORK = (sys.executable, "-I", "-m", "gipfel_extension.services.programs", "port")


class ServiceSupervisor:
    """Runs one service from its directory, and is the only writer of its state."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._spec = read_spec(folder)
        self._state = read_service_state(folder)
        self._parts: dict[str, asyncio.subprocess.Process] = {}
        self._nodes: JobNodes | None = None
        self._workers = Workers(folder, _service_environment(self._environment))
        self._ending: signal.Signals | None = None
        self._written = 0.0
        self._packages = ""
        self._is_idle = False
        self._reporter: asyncio.Task[None] | None = None
        self._handover = Handover(folder, overlaps=self._spec.blueprint.handover == "overlap")

    @property
    def _of_hub(self) -> bool:
        return self._spec.scheduler == HUB

    def run(self) -> int:
        """Run the service to its end, and return its exit status."""
        adopt_orphans()
        with self._handover:
            # The recorder and others are not this process's descendants: it ends only what it has started.
            sockets = ScratchFolder.create()
            try:
                return asyncio.run(self._supervise(sockets.path))
            finally:
                end_descendants()
                sockets.remove()

    def _take_over(self) -> None:
        """Once the supervisor of the earlier job has ended, write the state, with that job's run folders."""
        with suppress(GipfelError, OSError):
            if self._handover.take_over():
                self._write(runs=self._runs(read_service_state(self._folder).runs, self._state.run))

    @staticmethod
    def _runs(earlier: tuple[str, ...], run: str) -> tuple[str, ...]:
        """Return the run folders of the service's jobs with that of this one at the end."""
        return (*(each for each in earlier if each != run), *((run,) if run else ()))[-_MAX_RUNS:]

    async def _supervise(self, sockets: Path) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._end, number)
        job_id = self._environment.get("GIPFEL_JOB_ID", self._state.job_id)
        run = self._environment.get("GIPFEL_RUN", "")
        node = self._environment.get("GIPFEL_NODE") or socket.gethostname().partition(".")[0]
        self._write(
            phase="queued",
            reason="It starts.",
            nodes=(node,),
            job_id=job_id,
            run=run,
            runs=self._runs(self._state.runs, run),
            supervisor=Process.of(os.getpid()),
            started_ns=time.time_ns(),
        )
        door: FrontDoor | None = None
        problem = ""
        try:
            await self._prepare()
            for name in self._spec.blueprint.start_order():
                await self._start(name, sockets)
            door = await self._open(sockets)
            await self._watch(door)
        except (GipfelError, OSError) as error:
            problem = str(error)
        finally:
            if self._reporter is not None:
                self._reporter.cancel()
            if door is not None:
                await door.stop()
            await asyncio.to_thread(self._workers.stop)
            await asyncio.to_thread(end_descendants)
        return self._write_end(problem, stopped=await self._is_stopping())

    async def _prepare(self) -> None:
        """Install the blueprint's packages, unless they are installed."""
        blueprint = self._spec.blueprint
        if any(part.workers for part in blueprint.parts.values()):
            self._nodes = await asyncio.to_thread(JobNodes, self._environment)
        if blueprint.environment == Environment():
            return
        log = self._handover.log("setup")
        log.unlink(missing_ok=True)
        environment = _service_environment(self._environment)
        packages = await asyncio.to_thread(make_environment, blueprint, environment, log, self._report)
        self._packages = str(packages)

    def _report(self, sentence: str) -> None:
        """Show a step of the start: in the state, and in the job's log, which the hub's page shows."""
        if self._of_hub:
            sys.stderr.write(f"{sentence}\n")
        self._write(reason=sentence)

    async def _start(self, name: str, sockets: Path) -> None:
        """Start a part, and wait until it is ready.

        Raises
        ------
        GipfelError
            The part can't be started, ends early, or is not ready in time.
        """
        part = self._spec.blueprint.parts[name]
        self._report(f"{self._spec.name}: starting {name}")
        argv, variables = resolve_part(part, self._references(name, sockets))
        _scratch(sockets, name).mkdir(mode=0o700)
        program = argv[0]
        if part.listen == "port":
            others = (f"--reach={port}={sockets / each}" for each, port in self._other_ports(part).items())
            argv = (*_PRIVATE_NETWORK, str(sockets / name), _PORT, *others, *argv)
        variables = {**_service_environment(self._environment), **variables}
        own = self._own_variables(program, part)
        argv, environment = gated_part(self._spec.blueprint, argv, variables, self._folder)
        environment |= own
        log = os.open(
            self._handover.log(name),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK,
            0o600,
        )
        try:
            self._parts[name] = await asyncio.create_subprocess_exec(
                *argv,
                env=environment,
                cwd=self._spec.directory or str(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problem = f"The part {name} can't be started: {argv[0]}: {reason}."
            raise GipfelError(problem, "Install it.") from error
        finally:
            os.close(log)
        if self._nodes is not None and part.workers:
            blueprint, references = self._spec.blueprint, self._references(name, sockets)
            gate = Gate(allow=blueprint.outbound) if blueprint.gate else None
            await asyncio.to_thread(self._workers.start, part, self._nodes, references, own, gate)
        await self._wait_until_ready(name, part, sockets / name)

    def _own_variables(self, program: str, part: Part) -> dict[str, str]:
        """Return the variables that lead to packages and secrets."""
        own = {f"{each.upper().replace('-', '_')}_FILE": self._secret(each) for each in part.secrets}
        return {"PYTHONPATH": self._packages, **own} if self._packages and program == sys.executable else own

    def _secret(self, name: str) -> str:
        return str(self._folder / SECRETS / name)

    async def _wait_until_ready(self, name: str, part: Part, path: Path) -> None:
        ready, deadline = part.ready, time.monotonic() + part.ready.timeout_s
        target = self._spec.prefix.rstrip("/") + ready.path if part.path == "keep" else ready.path

        def probe() -> Awaitable[bool]:
            if ready.accepts == "connections":
                return accepts_connections(path, _PROBE_S)
            return is_ready(path, target, ready.status, _PROBE_S)

        while not await probe():
            if await self._is_stopping():
                raise GipfelError("It was stopped before it was ready.")
            self._check_parts()
            if time.monotonic() > deadline:
                why = last_line(self._handover.log(name)) or "it wrote nothing"
                raise GipfelError(f"The part {name} was not ready after {ready.timeout_s:g} s: {why}")
            await self._pause()
        # Another program's umask may let others connect; the directory does not let them in.
        with suppress(OSError):
            os.chmod(path, 0o600)  # noqa: PTH101 - in an async function, where ruff takes Path.chmod for I/O

    async def _open(self, sockets: Path) -> FrontDoor:
        name = self._spec.blueprint.front_part
        part = self._spec.blueprint.parts[name]
        route = Route(
            socket=str(sockets / name), prefix=self._spec.prefix, mode=part.path, allowed=part.allow_paths,
            socket_name=part.socket_name,
        )  # fmt: skip
        if self._of_hub:
            listener = _bind_for_hub(self._environment)
            access: Access = HubAccess(self._spec.prefix, host=self._spec.host)
        else:
            # Without a hub only this node connects: a browser comes through ssh.
            listener = bind_port("127.0.0.1", None)
            access = TokenAccess(read_token(self._folder), self._spec.name, self._spec.prefix)
        door = FrontDoor(route, access)
        await door.start(listener)
        address, port = listener.getsockname()[:2]
        self._handover.announce()
        if self._of_hub:
            # Bound to all addresses, it is reached from other nodes by the node's name.
            address = self._state.nodes[0] if address in {"::", "0.0.0.0"} else address  # noqa: S104
            await self._report_to_hub(door, port)
        place = {"address": address, "port": port, "prefix": self._spec.prefix, "host": self._spec.host}
        self._write(phase="running", reason="", **place)
        return door

    async def _report_to_hub(self, door: FrontDoor, port: int) -> None:
        """Report the port, now that the service is ready, and from now on its activity."""
        try:
            await asyncio.to_thread(report_port, port, self._environment)
        except OSError as error:
            raise GipfelError(f"The hub did not accept the service's port: {error}.") from error
        self._reporter = asyncio.create_task(report_activity(door, self._environment))

    async def _watch(self, door: FrontDoor) -> None:
        idle_s = self._spec.blueprint.idle_s
        while not await self._is_stopping():
            self._check_parts()
            if self._handover.waits:
                await asyncio.to_thread(self._take_over)
            self._is_idle = bool(idle_s) and door.idle_s > idle_s
            if self._is_idle:
                return
            await self._pause()

    async def _pause(self) -> None:
        """Wait; from time to time, first write a sign that the supervisor is alive."""
        if time.monotonic() - self._written > _HEARTBEAT_S:
            await asyncio.to_thread(self._write)
        await asyncio.sleep(_POLL_S)

    async def _is_stopping(self) -> bool:
        # In a thread, because the directory's file system may not answer.
        return self._ending is not None or await asyncio.to_thread((self._folder / STOP).exists)

    def _check_parts(self) -> None:
        for name, process in self._parts.items():
            if process.returncode is not None:
                why = last_line(self._handover.log(name)) or "it wrote nothing"
                raise GipfelError(f"The part {name} {_end_of(process.returncode)}: {why}")
        if problem := self._workers.problem():
            raise GipfelError(problem)

    def _references(self, name: str, sockets: Path) -> dict[str, str]:
        storage = storage_directory(self._spec, self._folder, self._environment)
        part = self._spec.blueprint.parts[name]
        listens = {"port": _PORT} if part.listen == "port" else {"socket": str(sockets / name)}
        return {
            **parameter_references(self._spec),
            **listens,
            **(self._nodes.references(0) if self._nodes and part.workers else {}),
            "environment": self._packages,
            **{f"parts.{each}.socket": str(sockets / each) for each in part.needs},
            **{f"parts.{each}.port": str(port) for each, port in self._other_ports(part).items()},
            **{f"secrets.{each}": self._secret(each) for each in part.secrets},
            "python": sys.executable,
            "prefix": self._spec.prefix,
            "path": self._spec.prefix.rstrip("/"),
            "storage": str(storage),
            "scratch": str(_scratch(sockets, name)),
        }

    def _other_ports(self, part: Part) -> dict[str, int]:
        """Return the ports of the parts that a part reaches by TCP, in its own network namespace."""
        names = ports_of(self._spec.blueprint, part)
        return {name: _FIRST_OTHER_PORT + number for number, name in enumerate(names)}

    def _end(self, number: int) -> None:
        self._ending = signal.Signals(number)

    def _write(self, **changes: object) -> None:
        self._written = time.monotonic()
        # A full disk must not end a service.
        self._state = self._state.model_copy(update=changes)
        if not self._handover.owns:
            return
        with suppress(OSError):
            self._state = write_state(self._folder, self._state)

    def _write_end(self, problem: str, *, stopped: bool) -> int:
        ended_well = stopped or self._is_idle
        status = 143 if stopped else 1
        outcome = "stopped" if ended_well else "failed"
        reason = "" if stopped else one_line(problem)
        if self._is_idle:
            status, reason = 0, f"No request for {self._spec.blueprint.idle_s} s."
        self._write(
            phase="ended", outcome=outcome, reason=reason, ended_ns=time.time_ns(), exit_status=status, port=0
        )
        if reason:
            sys.stderr.write(f"gipfel: {reason}\n")
        return 0 if ended_well else 1


def _scratch(sockets: Path, part: str) -> Path:
    """Return a part's own directory of temporary files; a name with a dot is not another part's socket."""
    return sockets / f"{part}.tmp"


def _bind_for_hub(environment: Mapping[str, str]) -> socket.socket:
    """Return a listening socket on a port that the hub allows, as JupyterHub's own servers do.

    Raises
    ------
    GipfelError
        No port can be bound.
    """
    address = urlsplit(environment.get("JUPYTERHUB_SERVICE_URL", ""))
    return bind_port(address.hostname or "", PortRange.parse(environment.get(PORTS_VARIABLE, "")))


def _end_of(status: int) -> str:
    """Return how a process ended, from its exit status as `subprocess` gives it: negative for a signal."""
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended with status {status}"


def _service_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a service's programs: no tokens, and nothing of the hub."""
    return {
        name: value
        for name, value in without_tokens(environment).items()
        if not name.startswith(("JUPYTERHUB_", "JPY_"))
    }


def main() -> int:
    """Run the service of a directory; print an error as one line on stderr."""
    try:
        return ServiceSupervisor(Path(sys.argv[1]), os.environ).run()
    except (GipfelError, OSError) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
