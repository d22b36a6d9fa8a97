"""The variables that a process was started with, to the byte."""

#: The environment variable that carries an order into the container; the command does not see it.
VARIABLE = b"GIPFEL_SSH"


def environment_of(process: str) -> dict[bytes, bytes]:
    """Read what the kernel keeps of a process's first environment; the process may have changed its own.

    Raises
    ------
    OSError
        There is no such process, or it is another user's.
    """
    with open(f"/proc/{process}/environ", "rb") as file:  # noqa: PTH123 - the command waits; pathlib is slow
        content = file.read()
    return dict(entry.split(b"=", 1) for entry in content.split(b"\0") if b"=" in entry)
