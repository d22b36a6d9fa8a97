"""The head's end of the fan-in: takes the ticks of the job's other nodes, for the readers on this one.

``python -m gipfel_extension.telemetry.live.receiver`` prints on stdout, in one line of JSON, the port on
which it listens and, where it was given no keys, what it made: ``port``, and ``environment`` for senders
and ``head`` for a successor of its own. Whoever doesn't hold the job's keys is not answered.
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from ..sample import SourceError
from .fan_in import FanInKeys
from .ticks import LONGEST_PATH

#: Numbers of ticks that are remembered for each sender, to leave out what comes twice.
_REMEMBERED = 4096
_SENDERS = 4096
_LONGEST_MESSAGE = 16 * 2**20
_GLANCE_MS = 200


class FanInReceiver:
    """Receiver of ticks, which publishes them on ``<sockets>/fan-in.sock`` as the recorders here do theirs.

    Parameters
    ----------
    address
        Where to listen: ``*`` for every interface.
    port
        0 for any that is free.

    Raises
    ------
    SourceError
        It can't listen, or the socket can't be made.
    """

    def __init__(self, sockets: Path, keys: FanInKeys, *, address: str = "*", port: int = 0) -> None:
        path = sockets / "fan-in.sock"
        if len(str(path).encode()) > LONGEST_PATH:
            raise SourceError(f"The socket's path {path} is too long.", "Use a folder with a short path.")
        self._seen: OrderedDict[bytes, OrderedDict[int, None]] = OrderedDict()
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", _Allowed(keys.client))
        self._router = self._context.socket(zmq.ROUTER)
        self._publisher = self._context.socket(zmq.PUB)
        for option, value in {
            zmq.LINGER: 0,
            zmq.RCVHWM: 10_000,
            zmq.ROUTER_HANDOVER: 1,
            zmq.HEARTBEAT_IVL: 2000,
            zmq.HEARTBEAT_TIMEOUT: 6000,
            zmq.MAXMSGSIZE: _LONGEST_MESSAGE,
            zmq.IPV6: 1,
        }.items():
            self._router.setsockopt(option, value)
        self._router.curve_server = True
        self._router.curve_secretkey = keys.server_secret.encode()
        self._router.curve_publickey = keys.server.encode()
        # A reader that was stopped for ten seconds still gets all of 1 000 nodes.
        self._publisher.setsockopt(zmq.SNDHWM, 10_000)
        self._publisher.setsockopt(zmq.LINGER, 500)
        try:
            self._router.bind(f"tcp://{address}:{port or '*'}")
            self._publisher.bind(f"ipc://{path}")
            path.chmod(0o600)
        except (zmq.ZMQError, OSError) as error:
            self.close()
            raise SourceError(f"The head can't take the other nodes' samples: {error}.") from error
        endpoint = str(self._router.get_string(zmq.LAST_ENDPOINT))
        self.port = int(endpoint.rstrip("\0").rpartition(":")[2])
        self.received = 0
        self.repeated = 0

    def run(self, ended: threading.Event, *, parent: int | None = None) -> None:
        """Receive until the event is set, or until this process has another parent than `parent`."""
        while not ended.is_set() and parent in (None, os.getppid()):
            self.receive(_GLANCE_MS / 1000)

    def receive(self, timeout: float) -> int:
        """Take what has come, waiting up to `timeout` seconds for the first; how many ticks were new."""
        new = 0
        if not self._router.poll(int(1000 * timeout)):
            return new
        while True:
            try:
                peer, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return new
            if len(parts) != 3 or len(parts[0]) != 8 or len(parts[1]) != 8:
                continue
            sender, number, content = parts
            if self._first_time(sender, int.from_bytes(number)):
                self._publisher.send(content)
                new += 1
            self._acknowledge(peer, sender, number)

    def close(self) -> None:
        """Let go of all sockets."""
        self._router.close(0)
        self._publisher.close()
        self._authenticator.stop()
        self._context.term()

    def _acknowledge(self, peer: bytes, sender: bytes, number: bytes) -> None:
        try:
            self._router.send_multipart([peer, sender, number], zmq.NOBLOCK)
        except zmq.ZMQError:
            # It has gone, and will send again.
            return

    def _first_time(self, sender: bytes, number: int) -> bool:
        known = self._seen.setdefault(sender, OrderedDict())
        self._seen.move_to_end(sender)
        if len(self._seen) > _SENDERS:
            self._seen.popitem(last=False)
        if number in known:
            self.repeated += 1
            return False
        known[number] = None
        if len(known) > _REMEMBERED:
            known.popitem(last=False)
        self.received += 1
        return True


class _Allowed:
    """The one key that clients may show."""

    def __init__(self, client: str) -> None:
        self._client = z85.decode(client.encode())

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client's public key is the job's; ZeroMQ asks before the connection is made."""
        del domain
        return key in (self._client, z85.encode(self._client))


def main(arguments: Sequence[str] | None = None) -> int:
    """Receive until SIGTERM, SIGINT or SIGHUP; 1 where it can't listen."""
    given = _parser().parse_args(arguments)
    os.umask(0o077)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    parent = os.getppid() if given.with_parent == 0 else given.with_parent
    try:
        keys = FanInKeys.from_environment(os.environ)
        made = keys is None or not keys.server_secret
        keys = FanInKeys.make() if keys is None or made else keys
        receiver = FanInReceiver(given.sockets, keys, address=given.address, port=given.port)
    except SourceError as error:
        print(f"fan-in: {error}", file=sys.stderr)  # noqa: T201 - the job's log
        return 1
    answer: dict[str, Any] = {"port": receiver.port}
    if made:
        answer |= {"environment": keys.to_environment(), "head": keys.to_environment(head=True)}
    print(json.dumps(answer), flush=True)  # noqa: T201 - read by the job
    receiver.run(ended, parent=parent)
    receiver.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gipfel_extension.telemetry.live.receiver", description=__doc__
    )
    parser.add_argument("--sockets", type=Path, required=True, help="folder of the live streams' sockets")
    parser.add_argument("--address", default="*", help="where to listen (default: every interface)")
    parser.add_argument("--port", type=int, default=0, help="which port (default: any that is free)")
    parser.add_argument(
        "--with-parent", nargs="?", type=int, const=0, help="end when the parent process, of this id, ends"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
