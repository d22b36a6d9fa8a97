"""One ssh session: the container's variables and working directory, the user's shell, and what was asked.

``sshd`` runs it in the place of every command: ``python -I -m gipfel_cluster.hooks.inside.session PID SFTP``,
where PID is the server's process, which keeps the container's environment, and SFTP the program for files.
"""

import os
import pwd
import signal
import sys

from .variable import VARIABLE, environment_of

#: The notebook server's own, and what a session has of its own.
_LEFT_OUT = (b"JUPYTERHUB_", b"JPY_", b"SSH_", b"SHLVL=", b"PWD=", b"OLDPWD=", b"_=", b"TERM=", VARIABLE)
_OF_THE_SESSION = (b"SSH_CLIENT", b"SSH_CONNECTION", b"SSH_TTY", b"TERM")
_USUAL = (b"HOME", b"USER", b"LOGNAME", b"PATH")
_NOT_STARTED = 126


def main(server: str, sftp: str) -> int:
    """Become the shell, the shell's command, or the program for files."""
    asked = os.environ.get("SSH_ORIGINAL_COMMAND", "")
    shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    environment = {
        name: value
        for name, value in environment_of(server).items()
        if not (name + b"=").startswith(_LEFT_OUT)
    }
    environment |= {name: os.environb[name] for name in _OF_THE_SESSION if name in os.environb}
    environment = {name: os.environb[name] for name in _USUAL if name in os.environb} | environment
    environment[b"SHELL"] = os.fsencode(shell)
    try:
        os.chdir(f"/proc/{server}/cwd")
    except OSError:
        os.chdir("/")
    environment[b"PWD"] = os.fsencode(os.getcwd())  # noqa: PTH109 - pathlib is slow to load
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        if asked and asked == sftp:
            os.execve(sftp, [sftp], environment)  # noqa: S606
        # No login shell: its /etc/profile would put the distribution's PATH over the container's.
        words = [shell.rpartition("/")[2], *(("-c", asked) if asked else ())]
        os.execve(shell, words, environment)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"gipfel: {error.filename or shell} could not be started: {error.strerror}.\n")
        return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
