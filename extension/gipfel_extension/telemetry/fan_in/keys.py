"""The keys of one job's fan-in: who may send to its head node, made anew for each job."""

from collections.abc import Mapping
from dataclasses import dataclass

import zmq

from ..sample import SourceError

_SERVER, _SERVER_SECRET = "GIPFEL_FAN_IN_SERVER", "GIPFEL_FAN_IN_SERVER_SECRET"
_CLIENT, _CLIENT_SECRET = "GIPFEL_FAN_IN_CLIENT", "GIPFEL_FAN_IN_CLIENT_SECRET"


@dataclass(frozen=True, repr=False)
class FanInKeys:
    """Two CURVE key pairs as Z85 text: the head's, and the one that all nodes of the job share.

    They travel in the environment alone. A sender's has no ``server_secret``.
    """

    server: str
    client: str
    client_secret: str
    server_secret: str = ""

    @classmethod
    def make(cls) -> "FanInKeys":
        """New keys."""
        server, server_secret = (key.decode() for key in zmq.curve_keypair())
        client, client_secret = (key.decode() for key in zmq.curve_keypair())
        return cls(server, client, client_secret, server_secret)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "FanInKeys | None":
        """The keys that a process was given; None where it was given none.

        Raises
        ------
        SourceError
            A variable holds no key.
        """
        given = [environment.get(name, "") for name in (_SERVER, _CLIENT, _CLIENT_SECRET, _SERVER_SECRET)]
        if not all(given[:3]):
            return None
        # 32 bytes in Z85.
        if any(len(key) != 40 for key in given if key):
            raise SourceError(
                "The keys of the fan-in are no CURVE keys.", "They are made by the job; start it again."
            )
        return cls(*given)

    def to_environment(self, *, head: bool = False) -> dict[str, str]:
        """Variables for a sender, or for the head, which holds the server's secret too."""
        given = {_SERVER: self.server, _CLIENT: self.client, _CLIENT_SECRET: self.client_secret}
        return {**given, _SERVER_SECRET: self.server_secret} if head else given
