"""The program that creates a container on the host and runs a command in it; it begins in `start`.

Its start adds to the time from a click to a notebook, so it imports only modules that are loaded already or
that load fast: no ``os`` (it uses ``posix``, the part of ``os`` in C), ``re``, ``json``, ``dataclasses``,
``pathlib``, ``typing``, ``contextlib`` or ``enum``; other modules are imported only when they are needed. A
test lists the permitted modules. All of them are in the standard library, so that any Python from 3.11 on can
run it.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def sandbox_argv(python: "str | Sequence[str]", mode: str) -> tuple[str, ...]:
    """Return the argv that starts the program.

    Parameters
    ----------
    python
        A Python of the host, as a path or as the first words of an argv.
    mode
        ``container`` or ``mounted``, see `start`.
    """
    words = (python,) if isinstance(python, str) else tuple(python)
    return (*words, "-I", "-S", f"{__path__[0]}/start.py", mode)
