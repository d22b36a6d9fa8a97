"""The configuration of a user's own ssh server."""

import re
from collections.abc import Mapping

_SAFE = re.compile(r"/[A-Za-z0-9._+@/-]*")
#: Neither blanks nor what AllowUsers takes for a pattern or a host.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

_FIXED = """\
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
AuthorizedKeysCommand none
AuthorizedPrincipalsFile none
TrustedUserCAKeys none
PermitRootLogin no
PermitUserEnvironment no
PermitUserRC no
PermitTTY yes
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
AllowAgentForwarding no
GatewayPorts no
X11Forwarding no
PermitTunnel no
PrintMotd no
PrintLastLog no
UseDNS no
LoginGraceTime 30
LogLevel INFO
"""


def server_configuration(
    port: int,
    *,
    user: str,
    host_key: str,
    authorized_keys: str,
    session: tuple[str, ...],
    programs: Mapping[str, str],
    pid_file: str = "",
) -> str:
    """Write what ``sshd -f`` reads.

    Parameters
    ----------
    host_key, authorized_keys
        Paths of files that only the user can open.
    session
        The words that run a session; each is free of what a shell reads.
    programs
        Paths of ``sftp-server``, ``sshd-session`` and ``sshd-auth``, where there are any.

    Raises
    ------
    ValueError
        A path holds something else than letters, digits and ``. _ + @ - /``.
    """
    for path in (host_key, authorized_keys, *programs.values(), *filter(None, [pid_file])):
        if not _SAFE.fullmatch(path):
            raise ValueError(f"{path!r} can't be written into a configuration")
    lines = [
        f"Port {port}",
        f"HostKey {host_key}",
        f"AuthorizedKeysFile {authorized_keys}",
        # In a user namespace the folders above belong to nobody, which sshd refuses; the file is private.
        "StrictModes no",
        f"PidFile {pid_file or 'none'}",
        f"ForceCommand exec {' '.join(session)}",
    ]
    if _PLAIN_NAME.fullmatch(user):
        # For other names: sshd can't become anybody else, and says no to every other name.
        lines.append(f"AllowUsers {user}")
    for name, keyword in (("sshd-session", "SshdSessionPath"), ("sshd-auth", "SshdAuthPath")):
        if name in programs:
            lines.append(f"{keyword} {programs[name]}")
    if "sftp-server" in programs:
        lines.append(f"Subsystem sftp {programs['sftp-server']}")
    return "\n".join(lines) + "\n" + _FIXED
