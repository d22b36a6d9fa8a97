"""The program that makes a container on the host, before its command runs; it begins in `start`.

Everything here counts in the time from a click to a notebook, so that only modules are imported that are
there or made in a moment: no ``os`` (its part in C is ``posix``), ``re``, ``json``, ``dataclasses``,
``pathlib``, ``typing``, ``contextlib`` or ``enum``, and what few containers need where they need it. A test
names those that may be imported. It is the standard library only, so that any Python from 3.11 on will do.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def start_words(python: "str | Sequence[str]", what: str) -> tuple[str, ...]:
    """Return the words that start the program.

    Parameters
    ----------
    python
        A Python of the host, as a path or as the first words of an argv.
    what
        ``container`` or ``mounted``, as in `start`.
    """
    words = (python,) if isinstance(python, str) else tuple(python)
    return (*words, "-I", "-S", f"{__path__[0]}/start.py", what)
