"""Worker of an agent: ``python -m gipfel_extension.vetting.run.worker``.

It has a single thread, so that it can fork, and exchanges lines of JSON with its agent. The two watch each
other: a silent agent is killed with its descendants, so that a stopped agent does not keep its job step
alive. Each check runs in a child process, which can be killed.
"""

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping
from functools import cached_property, partial

from pydantic import TypeAdapter

from gipfel_cluster.namespaces import die_with_parent
from gipfel_cluster.process.tree import adopt_orphans, descendants

from ..check import CheckContext, Host
from ..children import Child, LocalProbes, probe_answer, python_for_probes, start_function, start_probe
from ..gpus import Nvml
from ..model import CheckResult
from ..one_check import run_check
from ..probing import IMPORT_LIMIT_S, ForkServer, ProbeAnswer
from ..protocol import ProtocolCheck
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
        self._server: ForkServer | None = None
        self._import_reported = False
        #: A check without a child waits for the import of torch.
        self._task: RunCheck | RunRanks | None = None
        #: The processes of the task by rank; that of a check has rank 0.
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
                if ready.select(_IDLE_S if self._task is None else _BUSY_S):
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
                self._task = message
                if message.torch:
                    self._import_torch()
            case RunRanks() as message:
                self._end_all()
                self._task = message
                self._start_ranks(message)
            case Stop(task=task) if self._task is not None and self._task.task == task:
                if not self._children:
                    self._task = None
                for child in self._children.values():
                    child.kill()

    def _import_torch(self) -> None:
        """Start the import of torch in the fork server; if that fails, each probe imports torch itself."""
        if self._server is None:
            with contextlib.suppress(OSError):
                self._server = ForkServer(self._python, self._environment)

    def _watch_import(self) -> bool:
        """Report the end of torch's import once; return whether the import is still running."""
        server = self._server
        importing = server is not None and server.importing
        if server and server.can_fork and server.imported and not self._import_reported:
            self._import_reported = True
            _send(TorchImported(seconds=server.imported.seconds))
        return importing

    def _start_waiting(self, message: RunCheck) -> None:
        """Start the requested check, or report that it needs torch, which can't be imported."""
        if self._server and self._server.timed_out and message.torch == "now":
            self._task = None
            problem = f"torch could not be imported within {IMPORT_LIMIT_S:g} s."
            _send(CheckDone(task=message.task, problem=problem))
        else:
            context = CheckContext(
                node=self._node,
                environment=self._environment,
                host=Host(),
                gpus=Nvml(self._environment),
                probes=LocalProbes(self._python, self._environment, self._server),
                expected_gpus=self._gpus,
            )
            # The grace time lets the check report its time limit itself.
            limit = message.limit_s + _GRACE_S
            self._children[0] = start_function(partial(_results, message.entry, context), limit_s=limit)

    def _start_ranks(self, message: RunRanks) -> None:
        self._results = {}
        for local, rank in enumerate(message.ranks):
            try:
                self._children[rank] = start_probe(
                    message.spec, python=self._python, environment=self._environment,
                    variables=_rank_variables(message, rank, local), server=self._server,
                )  # fmt: skip
            except OSError as error:
                answer = ProbeAnswer(error=f"{self._python} can't be started: {error.strerror}.")
                self._results[rank] = RankResult(rank=rank, answer=answer, died=True)

    @cached_property
    def _python(self) -> str:
        return python_for_probes(self._environment)

    def _advance(self) -> None:
        importing, task = self._watch_import(), self._task
        if isinstance(task, RunCheck) and not self._children and not (importing and task.torch == "now"):
            self._start_waiting(task)
        for rank, child in list(self._children.items()):
            if child.advance():
                del self._children[rank]
                self._on_end(rank, child)
        if isinstance(self._task, RunRanks) and not self._children:
            results = tuple(self._results[rank] for rank in self._task.ranks)
            self._finish(RanksFinished(task=self._task.task, results=results))

    def _on_end(self, rank: int, child: Child) -> None:
        if isinstance(self._task, RunCheck):
            self._finish(_check_done(self._task, child))
        elif self._task:
            self._results[rank] = result = _rank_result(rank, child)
            if (result.died or result.answer.error) and self._children:
                _send(RankDied(task=self._task.task))

    def _finish(self, message: Message) -> None:
        self._task = None
        _send(message)
        self._end_strays()

    def _end_all(self) -> None:
        for child in self._children.values():
            child.kill()
        self._children, self._task = {}, None
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


def _results(entry: ProtocolCheck, context: CheckContext) -> bytes:
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
