"""The entry point of an image: what runs before the command, and starts it.

Enroot keeps it in ``/etc/rc``, a script for the shell that takes the command as its arguments and enters the
image's own working folder. Sources: Enroot, ``docker::configure`` and ``doc/image-format.md``.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .rootfs import Layers

_SCRIPT = "/etc/rc"
_SHELL = "/bin/sh"
_ENTER = 'cd -- "$0" && exec "$@"'


def entered(
    layers: "Layers", entry: "Sequence[str]", command: "Sequence[str]", workdir: str
) -> tuple[str, ...]:
    """Put the entry point before a command; an image without one leaves the command as it is.

    Parameters
    ----------
    entry
        The words of its OCI configuration; empty where that is not known.
    workdir
        Where the command starts, whatever folder the script enters; empty for the script's.
    """
    if entry:
        return (*entry, *command)
    if not layers.read(_SCRIPT):
        return tuple(command)
    folder = (_SHELL, "-c", _ENTER, workdir) if workdir else ()
    starter = () if layers.is_executable(_SCRIPT) else (_SHELL,)
    return (*starter, _SCRIPT, *folder, *command)
