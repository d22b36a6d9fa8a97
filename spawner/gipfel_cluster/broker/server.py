"""The broker itself: it listens, answers one request a connection, and ends what it started."""

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

from ..model import Frozen, GipfelError
from ..scheduler.account import own_name
from ..scheduler.protocol import Scheduler
from .connection import Connection, peer_uid
from .container import usable_edf
from .containers import Containers
from .messages import (
    AddressAnswer,
    AddressRequest,
    AnyRequest,
    CancelRequest,
    Done,
    EdfAnswer,
    EdfRequest,
    FactsAnswer,
    FactsRequest,
    KernelRequest,
    LocateAnswer,
    LocateRequest,
    PartitionsAnswer,
    PartitionsRequest,
    QueryAnswer,
    QueryRequest,
    Refusal,
    RunRequest,
    SubmitAnswer,
    SubmitRequest,
    read_request,
)
from .surroundings import Surroundings, passed_on

_MOST_CONNECTIONS = 96
_MOST_WAITING = 512
_AT_ONCE = 4  # questions to the scheduler and to file systems
_READ_S = 10.0
_ANSWER_S = 60.0
_PAUSE_S = 0.1


class Broker:
    """Answers the processes of one job.

    Parameters
    ----------
    surroundings
        The job.
    scheduler
        The one that runs the job.
    """

    def __init__(self, surroundings: Surroundings, scheduler: Scheduler) -> None:
        self._surroundings = surroundings
        self._scheduler = scheduler
        self._containers = Containers(surroundings)
        self._conversations: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def serve(self, listener: socket.socket, ended: asyncio.Event) -> None:
        """Answer until `ended` is set; when this returns, none of its containers is left.

        Parameters
        ----------
        listener
            What `listen` made.
        """
        listener.settimeout(0)
        accepting = asyncio.create_task(self._accept(listener))
        try:
            await ended.wait()
        finally:
            accepting.cancel()
            self._surroundings.socket.unlink(missing_ok=True)
            for each in self._conversations:
                each.cancel()
            await asyncio.gather(accepting, *self._conversations, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while len(self._conversations) >= _MOST_CONNECTIONS:  # The others wait for their turn.
                await asyncio.wait(self._conversations, return_when=asyncio.FIRST_COMPLETED)
            try:
                connected, _ = await loop.sock_accept(listener)
            except OSError:  # Out of descriptors, or the client has gone already.
                await asyncio.sleep(_PAUSE_S)
                continue
            if peer_uid(connected) != os.getuid():
                connected.close()
                continue
            connected.settimeout(0)
            task = asyncio.create_task(self._converse(Connection(connected)))
            self._conversations.add(task)
            task.add_done_callback(self._conversations.discard)

    async def _converse(self, client: Connection) -> None:
        try:
            await self._answered(client)
        except GipfelError as error:
            await _refuse(client, error.problem, error.fix)
        except TimeoutError:
            await _refuse(client, "The broker's time for this request ran out.", "Try again later.")
        except (OSError, EOFError):
            return  # The client is gone.
        except Exception as error:  # noqa: BLE001 - no request may end the broker
            sys.stderr.write(f"gipfel: the broker failed at a request: {type(error).__name__}\n")
            await _refuse(client, f"The broker failed: {type(error).__name__}. This is a mistake in gipfel.")
        finally:
            client.close()

    async def _answered(self, client: Connection) -> None:
        async with asyncio.timeout(_READ_S):
            line = await client.first_line()
        request = read_request(line)
        if isinstance(request, RunRequest | KernelRequest):
            await self._containers.run(request, client)
            return
        client.close_files()
        async with asyncio.timeout(_ANSWER_S), self._turns:
            answer = await self._answer(request)
        await client.send(answer)

    async def _answer(self, request: AnyRequest) -> Frozen:
        match request:
            case EdfRequest():
                edf = await asyncio.to_thread(usable_edf, request.edf, self._surroundings, request.engine)
                return EdfAnswer(name=edf.name, file=edf.path or "", image=edf.image)
            case LocateRequest():
                found = await asyncio.to_thread(self._surroundings.located, request.spot)
                return LocateAnswer(path=str(found) if found else None)
            case FactsRequest():
                return await asyncio.to_thread(facts, self._surroundings)
            case _:
                return await self._ask_scheduler(request)

    async def _ask_scheduler(self, request: AnyRequest) -> Frozen:
        match request:
            case SubmitRequest():
                if request.job.user not in {"", own_name()}:
                    raise GipfelError("The broker submits jobs of its own user only.", "Leave the user out.")
                return SubmitAnswer(job_id=await self._scheduler.submit(request.job))
            case QueryRequest():
                return QueryAnswer(jobs=await self._scheduler.query(request.job_ids))
            case CancelRequest():
                await self._scheduler.cancel(request.job_id)
                return Done()
            case AddressRequest():
                return AddressAnswer(address=await self._scheduler.address(request.node))
            case PartitionsRequest():
                return PartitionsAnswer(partitions=await self._scheduler.partitions())
            case _:
                raise GipfelError("The broker has no answer to this request.")


def facts(surroundings: Surroundings) -> FactsAnswer:
    """Say what a further job needs to know."""
    try:
        runtime = surroundings.runtime_for_images().root
    except GipfelError:
        runtime = ""
    return FactsAnswer(
        scheduler=surroundings.scheduler,
        cluster=surroundings.cluster,
        engine=surroundings.engine,
        python=sys.executable,
        runtime=runtime,
        home=surroundings.home,
        environment=passed_on(surroundings.host),
    )


async def _refuse(client: Connection, problem: str, fix: str = "") -> None:
    with contextlib.suppress(OSError, TimeoutError, GipfelError):
        await client.send(Refusal(problem=problem, fix=fix))


def listen(path: Path) -> socket.socket:
    """Make the socket, for its owner alone (0600)."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(_MOST_WAITING)
    except BaseException:
        listener.close()
        raise
    return listener
