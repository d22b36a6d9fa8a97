"""What the ssh hook asks of the programs in the container: plain data, for the standard library alone."""

import dataclasses
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class SshOrder:
    """An ssh server to be started beside a command; every path is one of the container.

    ``programs`` maps ``sshd`` and what it needs (``ssh-keygen``, ``sftp-server``, ``sshd-session``,
    ``sshd-auth``) to paths. ``keys`` are lines of an ``authorized_keys``. ``folder`` keeps the host key,
    ``notice`` is where the port is written down (empty for nowhere), ``pid_file`` may be empty.
    """

    programs: dict[str, str]
    keys: tuple[str, ...]
    port: int
    folder: str
    node: str = ""
    notice: str = ""
    pid_file: str = ""

    def to_json(self) -> str:
        """Write the order as one line."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "SshOrder":
        """Read what `to_json` wrote."""
        content = json.loads(text)
        return cls(**content | {"keys": tuple(content["keys"])})
