"""Start one ssh session: the user's shell with the container's variables and working directory.

``sshd`` runs this program in place of every command, as
``python -I -m gipfel_cluster.hooks.inside.session PID SFTP``. PID is the process of `serve`, which holds the
container's environment, and SFTP the path of ``sftp-server``.
"""

import os
import pwd
import signal
import sys

from .start import VARIABLE, environment_of

#: Variables of the container that a session does not get: the notebook server's, and those of a session.
_EXCLUDED = (b"JUPYTERHUB_", b"JPY_", b"SSH_", b"SHLVL=", b"PWD=", b"OLDPWD=", b"_=", b"TERM=", VARIABLE)
_SESSION_VARIABLES = (b"SSH_CLIENT", b"SSH_CONNECTION", b"SSH_TTY", b"TERM")
_LOGIN_VARIABLES = (b"HOME", b"USER", b"LOGNAME", b"PATH")
_NOT_STARTED = 126


def main(server: str, sftp: str) -> int:
    """Replace this process by the shell, the requested command in a shell, or ``sftp-server``."""
    command = os.environ.get("SSH_ORIGINAL_COMMAND", "")
    shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    environment = {
        name: value
        for name, value in environment_of(server).items()
        if not (name + b"=").startswith(_EXCLUDED)
    }
    environment |= {name: os.environb[name] for name in _SESSION_VARIABLES if name in os.environb}
    environment = {name: os.environb[name] for name in _LOGIN_VARIABLES if name in os.environb} | environment
    environment[b"SHELL"] = os.fsencode(shell)
    try:
        os.chdir(f"/proc/{server}/cwd")
    except OSError:
        os.chdir("/")
    environment[b"PWD"] = os.fsencode(os.getcwd())  # noqa: PTH109 - pathlib is slow to load
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        if command and command == sftp:
            os.execve(sftp, [sftp], environment)  # noqa: S606
        # Not a login shell: its /etc/profile would replace the container's PATH.
        words = [shell.rpartition("/")[2], *(("-c", command) if command else ())]
        os.execve(shell, words, environment)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"gipfel: {error.filename or shell} could not be started: {error.strerror}.\n")
        return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
