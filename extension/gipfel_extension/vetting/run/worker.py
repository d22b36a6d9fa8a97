"""Worker of an agent: ``python -m gipfel_extension.vetting.run.worker``.

It has a single thread, so that it can fork, and exchanges lines of JSON with its agent. The two watch each
other: a silent agent is killed with its descendants, so that a stopped agent does not keep its job step
alive. Each check runs in a child process (`check_locally`), which can be killed.
"""

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping

from pydantic import TypeAdapter

from gipfel_cluster.namespaces import die_with_parent
from gipfel_cluster.process.tree import adopt_orphans, descendants

from ..check import CheckContext, Host
from ..gpus import Nvml
from ..model import CheckResult
from ..one_check import run_check
from ..probing import IMPORT_LIMIT_S, ForkServer, ProbeAnswer
from ..protocol import ProtocolCheck
from .children import (
    Child,
    LocalProbes,
    probe_answer,
    python_for_probes,
    start_function,
    start_probe,
)
from .messages import (
    CheckDone,
    Heartbeat,
    Message,
    RankDied,
    RankResult,
    RanksFinished,
    RunCheck,
    RunRanks,
    Stop,
    TorchImported,
    from_coordinator,
)
from .rendezvous import interface_name

RESULTS: TypeAdapter[tuple[CheckResult, ...]] = TypeAdapter(tuple[CheckResult, ...])
#: Seconds without a message after which the agent is killed; it sends one every second.
SILENCE_S = 20.0
_BUSY_S, _IDLE_S, _GRACE_S = 0.05, 0.5, 2.0


class Worker:
    """Runner of one check, or one group of ranks, at a time.

    Parameters
    ----------
    agent
        Process ID of the agent.
    gpus
        Number of the job's GPUs on this node; None if it is unknown.
    """

    def __init__(self, agent: int, node: str, gpus: int | None, environment: Mapping[str, str]) -> None:
        self._agent = agent
        self._node = node
        self._gpus = gpus
        self._environment = dict(environment)
        self._python = ""
        self._server: ForkServer | None = None
        self._import_reported = False
        self._waiting: RunCheck | None = None
        self._check: tuple[RunCheck, Child] | None = None
        self._ranks: RunRanks | None = None
        self._children: dict[int, Child] = {}
        self._results: dict[int, RankResult] = {}
        self._last_heard = time.monotonic()
        self._last_heartbeat = 0.0

    def run(self) -> None:
        """Work until the agent closes the pipe."""
        os.set_blocking(0, False)
        buffer = b""
        with selectors.DefaultSelector() as ready:
            ready.register(0, selectors.EVENT_READ)
            while self._watch_agent():
                busy = self._waiting is not None or self._check is not None or self._ranks is not None
                if ready.select(_BUSY_S if busy else _IDLE_S):
                    piece = os.read(0, 1 << 16)
                    if not piece:
                        break
                    *lines, buffer = (buffer + piece).split(b"\n")
                    for line in lines:
                        self._on_message(line)
                self._advance()
        self._end_all()
        if self._server:
            self._server.close()

    def _watch_agent(self) -> bool:
        now = time.monotonic()
        if now - self._last_heartbeat > 1:
            self._last_heartbeat = now
            _send(Heartbeat())
        if os.getppid() != self._agent:
            return False
        if now - self._last_heard > SILENCE_S:
            self._end_all()
            with contextlib.suppress(OSError):
                os.kill(self._agent, signal.SIGKILL)
            return False
        return True

    def _on_message(self, line: bytes) -> None:
        self._last_heard = time.monotonic()
        match from_coordinator(line):
            case RunCheck() as message:
                self._end_all()
                if message.torch:
                    self._import_torch()
                self._waiting = message
            case RunRanks() as message:
                self._end_all()
                self._start_ranks(message)
            case Stop(task=task):
                self._stop(task)

    def _stop(self, task: int) -> None:
        if self._ranks and self._ranks.task == task:
            for child in self._children.values():
                child.kill()
        elif self._check and self._check[0].task == task:
            self._check[1].kill()
        elif self._waiting and self._waiting.task == task:
            self._waiting = None

    def _import_torch(self) -> None:
        """Start the import of torch in the fork server; if that fails, each probe imports torch itself."""
        if self._server is None:
            with contextlib.suppress(OSError):
                self._server = ForkServer(self._python_for_probes(), self._environment)

    def _start_waiting(self) -> None:
        """Start the requested check; if it needs torch, when the import has ended."""
        server = self._server
        importing = server is not None and server.importing
        if server and server.can_fork and server.imported and not self._import_reported:
            self._import_reported = True
            _send(TorchImported(seconds=server.imported.seconds))
        message = self._waiting
        if message is None or (importing and message.torch == "now"):
            return
        self._waiting = None
        if server and server.timed_out and message.torch == "now":
            problem = f"torch could not be imported within {IMPORT_LIMIT_S:g} s."
            _send(CheckDone(task=message.task, problem=problem))
        else:
            self._check = (message, self._start_check(message))

    def _start_check(self, message: RunCheck) -> Child:
        python, server = self._python_for_probes(), self._server

        def check() -> bytes:
            return check_locally(
                message.entry,
                node=self._node,
                gpus=self._gpus,
                python=python,
                environment=self._environment,
                server=server,
            )

        # The grace time lets the check report its time limit itself.
        return start_function(check, limit_s=message.limit_s + _GRACE_S)

    def _start_ranks(self, message: RunRanks) -> None:
        self._ranks, self._results = message, {}
        for local, rank in enumerate(message.ranks):
            try:
                self._children[rank] = start_probe(
                    message.spec, python=self._python_for_probes(), environment=self._environment,
                    variables=_rank_variables(message, rank, local), server=self._server,
                )  # fmt: skip
            except OSError as error:
                answer = ProbeAnswer(error=f"{self._python} can't be started: {error.strerror}.")
                self._results[rank] = RankResult(rank=rank, answer=answer, died=True)

    def _python_for_probes(self) -> str:
        self._python = self._python or python_for_probes(self._environment)
        return self._python

    def _advance(self) -> None:
        self._start_waiting()
        if self._check and self._check[1].advance():
            message, child = self._check
            self._check = None
            _send(_check_done(message, child))
            self._end_strays()
        for rank, child in list(self._children.items()):
            if child.advance():
                del self._children[rank]
                self._results[rank] = result = _rank_result(rank, child)
                if self._ranks and (result.died or result.answer.error) and self._children:
                    _send(RankDied(task=self._ranks.task))
        if self._ranks and not self._children:
            results = tuple(self._results[rank] for rank in self._ranks.ranks)
            _send(RanksFinished(task=self._ranks.task, results=results))
            self._ranks = None
            self._end_strays()

    def _end_all(self) -> None:
        self._waiting = None
        if self._check:
            self._check[1].kill()
            self._check = None
        for child in self._children.values():
            child.kill()
        self._children, self._ranks = {}, None
        self._end_strays()

    def _end_strays(self) -> None:
        """Kill processes that a check left behind in other sessions, except the fork server."""
        kept: set[int] = set()
        if self._server:
            # During the import, keep processes that the import has started.
            below = descendants(self._server.pid) if self._server.importing else ()
            kept = {self._server.pid, *below}
        for pid in descendants(os.getpid()):
            if pid in kept:
                continue
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def check_locally(
    entry: ProtocolCheck,
    *,
    node: str,
    gpus: int | None,
    python: str,
    environment: Mapping[str, str],
    server: ForkServer | None = None,
) -> bytes:
    """Return the results of one entry of a protocol on this node, as JSON."""
    context = CheckContext(
        node=node,
        environment=environment,
        host=Host(),
        gpus=Nvml(environment),
        probes=LocalProbes(python, environment, server),
        expected_gpus=gpus,
    )
    return RESULTS.dump_json(tuple(run_check(entry, context)))


def _rank_variables(message: RunRanks, rank: int, local: int) -> dict[str, str]:
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(message.world),
        "LOCAL_WORLD_SIZE": str(len(message.ranks)),
        "MASTER_ADDR": message.master,
        "MASTER_PORT": str(message.port),
    }
    interface = interface_name(message.address)
    if interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        # gloo uses the address of the host name, which is 127.0.1.1 on Debian.
        variables["GLOO_SOCKET_IFNAME"] = interface
    return variables


def _check_done(message: RunCheck, child: Child) -> CheckDone:
    if child.timed_out:
        problem = f"The check did not end within its time limit of {message.limit_s:g} s and was killed."
    elif child.stopped:
        problem = "The check's process was stopped by SIGSTOP and did not continue."
    elif child.killed:
        problem = "The check was stopped."
    elif child.status is not None and child.status < 0:
        problem = f"The check's process was killed by signal {-child.status}."
    else:
        try:
            return CheckDone(task=message.task, results=RESULTS.validate_json(bytes(child.output)))
        except ValueError:
            errors = child.errors.decode(errors="replace").strip().splitlines()
            last_line = (errors or ["nothing"])[-1][:300]
            problem = f"The check ended without results. Its last output: {last_line}"
    return CheckDone(task=message.task, problem=problem)


def _rank_result(rank: int, child: Child) -> RankResult:
    if child.killed and not (child.stopped or child.timed_out):
        return RankResult(rank=rank, answer=ProbeAnswer(error="It was stopped because another rank failed."))
    died = child.stopped or (not child.timed_out and (child.status or 0) < 0)
    return RankResult(rank=rank, answer=probe_answer(child), died=died)


def _send(message: Message) -> None:
    line = message.encode() + b"\n"
    try:
        while line:
            line = line[os.write(1, line) :]
    except OSError:
        # The agent has ended, which the loop of `run` notices.
        return


def main(arguments: list[str]) -> None:
    """Run the worker; the arguments are the agent's process ID, the node's name, and the GPUs or "-"."""
    die_with_parent()
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Slurm sends these signals to every process of a step; the agent handles them.
        signal.signal(number, signal.SIG_IGN)
    agent, node, gpus = arguments
    Worker(int(agent), node, None if gpus == "-" else int(gpus), os.environ).run()


if __name__ == "__main__":
    main(sys.argv[1:])
