"""Agent of a node: ``python -m gipfel_extension.vetting.run.agent``.

It only communicates, with the coordinator through a socket and with its worker through a pipe. So it always
responds, whatever a check does.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import zmq

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.ports import free_ports
from gipfel_cluster.process.tree import adopt_orphans, end_descendants

from ...topology import slurm_place
from ..probing import ProbeAnswer
from . import messages
from .location import node_name
from .rendezvous import RENDEZVOUS_VARIABLE, AgentSocket, Rendezvous

#: Seconds without a message after which the coordinator is lost; it sends one every second.
SILENCE_S = 30.0
#: Seconds within which the coordinator must be found.
FIND_LIMIT_S = 120.0
_WORKER_SILENCE_S, _WORKER_END_S = 30.0, 5.0
_TICK_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOST_STATUS = 1


class Agent:
    """Agent of a node.

    Parameters
    ----------
    find
        Returns the rendezvous of the coordinator; None while it is unknown.
    redundant
        Whether this agent only waits for the end, because another task is the node's agent.
    parent
        Process ID of the coordinator if it started this agent; it is killed if it does not respond.
    """

    def __init__(
        self,
        find: Callable[[], Rendezvous | None],
        *,
        node: str,
        redundant: bool = False,
        parent: int | None = None,
        environment: Mapping[str, str],
    ) -> None:
        self._find = find
        self._node, self._redundant, self._parent = node, redundant, parent
        self._environment = {key: each for key, each in environment.items() if key != RENDEZVOUS_VARIABLE}
        self._link: AgentSocket | None = None
        self._rendezvous: Rendezvous | None = None
        self._address = ""
        self._worker: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._task: messages.RunCheck | messages.RunRanks | None = None
        self._welcomed = False
        self._signal: int | None = None
        self._last_heard = self._worker_last_heard = time.monotonic()

    def run(self) -> int:
        """Serve until the coordinator ends the run; return its status, or 1 if the coordinator is lost."""
        adopt_orphans()
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        try:
            return self._serve()
        finally:
            self._end_worker()
            end_descendants()
            if self._link:
                self._link.close()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number

    def _serve(self) -> int:
        started = time.monotonic()
        while True:
            if self._signal is not None:
                self._send(messages.AgentEnded(reason=f"it received {signal.Signals(self._signal).name}"))
                return 128 + self._signal
            if self._parent is not None and os.getppid() != self._parent:
                return _LOST_STATUS
            if not self._welcomed and not self._say_hello() and time.monotonic() - started > FIND_LIMIT_S:
                _print_error(f"{self._node} found no coordinator within {FIND_LIMIT_S:g} s.")
                return _LOST_STATUS
            if self._welcomed and time.monotonic() - self._last_heard > SILENCE_S:
                _print_error(f"{self._node} has not heard from the coordinator for {SILENCE_S:g} s.")
                if self._parent is not None:
                    with contextlib.suppress(OSError):
                        os.kill(self._parent, signal.SIGKILL)
                return _LOST_STATUS
            if not self._welcomed and self._rendezvous is not None and not self._rendezvous.port:
                return _LOST_STATUS
            if self._worker is not None and time.monotonic() - self._worker_last_heard > _WORKER_SILENCE_S:
                self._lose_worker("no longer responded")
            end = self._listen()
            if end is not None:
                self._send(messages.AgentEnded())
                return end.status

    def _say_hello(self) -> bool:
        """Send `Hello`, through a new socket if the coordinator has changed; return whether it was found."""
        found = self._find()
        if found is None:
            time.sleep(0.2)
            return False
        if not found.port:
            self._rendezvous = found
            return False
        if found != self._rendezvous or self._link is None:
            reached = found.reachable()
            if reached is None:
                time.sleep(0.2)
                return False
            if self._link:
                self._link.close()
            host, self._address = reached
            self._link, self._rendezvous = AgentSocket(found, host), found
        self._send(
            messages.Hello(
                token=found.token,
                node=self._node,
                address=self._address,
                gpus=count_gpus(self._environment) or 0,
                switch=switch_name(self._environment),
                redundant=self._redundant,
            )
        )
        return True

    def _listen(self) -> messages.EndRun | None:
        """Handle messages of the coordinator and the worker for half a second; return the end of the run."""
        if self._link is None:
            return None
        worker = [self._worker.stdout.fileno()] if self._worker and self._worker.stdout else []
        ready, _, _ = zmq.select([self._link.socket, *worker], [], [], _TICK_S)
        if self._welcomed:
            self._send(messages.Heartbeat())
        self._send_to_worker(messages.Heartbeat())
        # The worker may have been lost while sending to it.
        if self._worker is not None and any(each in ready for each in worker):
            self._on_worker_output(os.read(worker[0], 1 << 16))
        while self._link.socket in ready:
            try:
                message = messages.from_coordinator(self._link.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            self._last_heard = time.monotonic()
            if isinstance(message, messages.EndRun):
                return message
            self._on_message(message)
        return None

    def _on_message(self, message: object) -> None:
        match message:
            case messages.Welcome():
                self._welcomed = True
            case messages.FindPort(task=task):
                self._send(messages.PortFound(task=task, port=free_ports("")[0]))
            case messages.RunCheck() | messages.RunRanks():
                self._task = message
                self._start_worker()
                self._send_to_worker(message)
            case messages.Stop():
                self._send_to_worker(message)

    def _start_worker(self) -> None:
        if self._worker is not None:
            return
        gpus = count_gpus(self._environment)
        argv = [sys.executable, "-m", f"{__package__}.worker", str(os.getpid()), self._node]
        self._worker = subprocess.Popen(
            [*argv, "-" if gpus is None else str(gpus)],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._buffer, self._worker_last_heard = b"", time.monotonic()

    def _send_to_worker(self, message: messages.Message) -> None:
        if self._worker is None or self._worker.stdin is None:
            return
        try:
            self._worker.stdin.write(message.encode() + b"\n")
            self._worker.stdin.flush()
        except OSError:
            self._lose_worker("ended")

    def _on_worker_output(self, piece: bytes) -> None:
        if not piece:
            self._lose_worker("ended")
            return
        self._worker_last_heard = time.monotonic()
        if self._signal is not None:
            # The signal may have ended the checks' processes too, so their results don't count.
            return
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            message = messages.from_agent(line)
            if message is None or isinstance(message, messages.Heartbeat):
                continue
            if isinstance(message, messages.CheckDone | messages.RanksFinished):
                self._task = None
            self._send(message)

    def _lose_worker(self, how: str) -> None:
        """Report the running task as lost; the next task starts a new worker."""
        self._end_worker()
        problem, task = f"The process that runs the checks on {self._node} {how}.", self._task
        self._task = None
        if isinstance(task, messages.RunCheck):
            self._send(messages.CheckDone(task=task.task, problem=problem))
        elif isinstance(task, messages.RunRanks):
            answer = ProbeAnswer(error=problem)
            results = tuple(messages.RankResult(rank=rank, answer=answer, died=True) for rank in task.ranks)
            self._send(messages.RanksFinished(task=task.task, results=results))

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            # This closes the worker's standard input, at which it ends.
            worker.communicate(timeout=_WORKER_END_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(_WORKER_END_S)

    def _send(self, message: messages.Message) -> None:
        if self._link:
            self._link.send(message.encode())


def count_gpus(environment: Mapping[str, str]) -> int | None:
    """Return the number of the job's GPUs on this node, or of all without a job; None if it is unknown."""
    for name in ("SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES"):
        value = environment.get(name)
        if value is not None:
            words = [word for word in value.split(",") if word.strip()]
            return int(value) if name == "SLURM_GPUS_ON_NODE" and value.isdecimal() else len(words)
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) or None


def switch_name(environment: Mapping[str, str]) -> str:
    """Return the leaf switch or block of this node from Slurm's topology variables; empty without them."""
    switches, _ = slurm_place(environment)
    return one_line(switches[-1]) if switches else ""


def _print_error(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"gipfel: {line}", file=sys.stderr, flush=True)  # noqa: T201


def main(arguments: list[str]) -> int:
    """Run the agent; the arguments are the process ID of a local coordinator and the node's name, or none."""
    try:
        rendezvous = Rendezvous.model_validate_json(os.environ.get(RENDEZVOUS_VARIABLE, ""))
        node = arguments[1] if arguments else node_name(os.environ)
    except ValueError:
        _print_error(f"{RENDEZVOUS_VARIABLE} is not set. Run `gipfel vet`, which starts its agents.")
        return 2
    except GipfelError as error:
        _print_error(str(error))
        return 2
    agent = Agent(
        lambda: rendezvous,
        node=node,
        parent=int(arguments[0]) if arguments else None,
        environment=os.environ,
    )
    return agent.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
