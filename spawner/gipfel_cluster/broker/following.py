"""A process that runs for a client: signals go to it, its end goes back."""

import asyncio
import contextlib
import signal
from asyncio.subprocess import Process

from pydantic import ValidationError

from ..engines.sandbox.supervise import FORWARDED, shell_status
from ..model import GipfelError
from .connection import Connection
from .messages import Ended, Signal

_LINE_BYTES = 256


async def follow(process: Process, client: Connection) -> None:
    """Pass the client's signals on until the process ends, which is told, or the client goes."""
    ended = asyncio.create_task(process.wait())
    spoken = asyncio.create_task(_pass_on(client, process))
    try:
        await asyncio.wait({ended, spoken}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await client.send(Ended(status=shell_status(ended.result())))
    finally:
        spoken.cancel()
        ended.cancel()
        await asyncio.gather(ended, spoken, return_exceptions=True)


async def _pass_on(client: Connection, process: Process) -> None:
    """Pass signals on until the client goes or says what nobody understands."""
    with contextlib.suppress(EOFError, OSError, GipfelError, ValidationError):
        while True:
            said = Signal.model_validate_json(await client.next_line(_LINE_BYTES))
            if said.signal in FORWARDED:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.Signals(said.signal))
