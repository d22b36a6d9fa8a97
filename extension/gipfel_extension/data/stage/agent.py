"""Staging on one node: ``python -m gipfel_extension.data.stage.agent DIRECTORY``, a task of a step.

It makes the copies and holds their locks until its supervisor ends, or it gets a signal. Then it removes what
no other process needs.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gipfel_cluster.model import GipfelError

from ...telemetry.files import read_regular
from ..s3 import S3Service
from .exchange import Exchange, ExchangeError, Peer
from .model import ITEMS, RENDEZVOUS, StageItem, StageSpec
from .store import NodeStore
from .wire import Channel, Rendezvous

_MAX_BYTES = 64 << 20
_FIND_S = 60.0
_BEAT_S = 0.5
_POLL_S = 0.2
#: The supervisor sends nothing while the data is held.
_CONTROL_S = None
_ITEMS = TypeAdapter(tuple[StageItem, ...])


class Agent:
    """The staging of one node.

    Parameters
    ----------
    folder
        The workload's directory.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._spec = StageSpec.model_validate_json(read_regular(folder / "spec.json", _MAX_BYTES))
        self._items = _ITEMS.validate_json(read_regular(folder / ITEMS, _MAX_BYTES))
        self._rendezvous = Rendezvous.model_validate_json(read_regular(folder / RENDEZVOUS, _MAX_BYTES))
        self._rank = int(environment.get("GIPFEL_NODE_RANK", "0"))
        self._sending = threading.Lock()

    def run(self) -> int:
        """Stage the data, hold it, and remove it; return the exit status."""
        channel = self._connect()
        self._send(channel, {"kind": "connected", "rank": self._rank})
        store = None
        try:
            service = S3Service(self._environment) if any(each.is_remote for each in self._items) else None
            store = NodeStore(self._spec, self._items, self._environment)
            self._stage(channel, store, service)
        except (ExchangeError, GipfelError, OSError) as error:
            known = isinstance(error, OSError) and store is not None
            problem = store.explain(error) if known and store and isinstance(error, OSError) else str(error)
            self._send(channel, {"kind": "failed", "problem": problem})
            return 1
        else:
            return 0
        finally:
            if store is not None:
                store.release()

    def _connect(self) -> Channel:
        key, end = bytes.fromhex(self._rendezvous.key), time.monotonic() + _FIND_S
        while True:
            for host in self._rendezvous.hosts:
                try:
                    channel = Channel.connect((host, self._rendezvous.port), key, _FIND_S)
                except OSError as error:
                    problem = error
                else:
                    channel.socket.settimeout(_CONTROL_S)
                    return channel
            if time.monotonic() > end:
                raise problem
            time.sleep(_POLL_S)

    def _stage(self, channel: Channel, store: NodeStore, service: S3Service | None) -> None:
        copies = store.open()
        exchange = Exchange(
            copies,
            bytes.fromhex(self._rendezvous.key),
            rank=self._rank,
            patience_s=self._spec.silent_s / 4,
            notify=lambda rank, problem: self._send(
                channel, {"kind": "doubt", "rank": rank, "problem": problem}
            ),
            service=service,
        )
        complete = [number for number, each in enumerate(copies) if each.complete]
        hello = {"port": exchange.port, "complete": complete, "tier": store.tier}
        reused = sum(copies[number].item.size for number in complete)
        self._send(channel, {"kind": "hello", "reused": reused, **hello})
        plan, _ = channel.receive()
        peers = {
            int(rank): Peer((str(host), int(port)), frozenset(had))
            for rank, (host, port, had) in plan["peers"].items()
        }
        ended = threading.Event()
        reporter = threading.Thread(target=self._report, args=(channel, exchange, ended), daemon=True)
        reporter.start()
        try:
            exchange.fill(peers)
        finally:
            ended.set()
            reporter.join()
        for copy in copies:
            store.finish(copy, service)
        roots = [each.root for each in copies]
        self._send(channel, {"kind": "staged", **_counts(exchange), "roots": roots})
        # Until its supervisor ends, or ends this staging.
        with contextlib.suppress(OSError):
            while channel.receive()[0].get("kind") != "end":
                continue
        exchange.close()

    def _report(self, channel: Channel, exchange: Exchange, ended: threading.Event) -> None:
        while not ended.wait(_BEAT_S):
            self._send(channel, {"kind": "progress", **_counts(exchange)})

    def _send(self, channel: Channel, message: dict[str, Any]) -> None:
        # Without its supervisor this task ends anyway.
        with self._sending, contextlib.suppress(OSError):
            channel.send(message)


def _counts(exchange: Exchange) -> dict[str, int]:
    return {"done": exchange.done, "read": exchange.read, "received": exchange.received}


def main() -> int:
    """Stage on this node; SIGTERM ends the hold."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        return Agent(Path(sys.argv[1]), os.environ).run()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gipfel: nothing can be staged here: {' '.join(str(error).split())[:300]}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
