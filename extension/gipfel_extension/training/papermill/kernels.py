"""Which kernel a notebook asks for, and whether there is one of that name."""

from pathlib import Path

from gipfel_cluster.model import GipfelError

from ..notebook_file import check_format, read_content

#: The name of Python's own kernel.
NATIVE = "python3"


def kernel_of(notebook: Path) -> str:
    """Return the name of the kernel that a notebook asks for.

    Raises
    ------
    GipfelError
        It can't be read or names none.
    """
    name = asked_kernel(notebook)
    if not name:
        raise GipfelError(f"The notebook {notebook} names no kernel.", "Pick one in JupyterLab and save it.")
    return name


def asked_kernel(notebook: Path) -> str:
    """Return the name of the kernel that a notebook asks for, empty where it names none.

    Raises
    ------
    GipfelError
        It can't be read, or is of a format without one.
    """
    content = read_content(notebook)
    check_format(notebook, content)
    try:
        return str(content["metadata"]["kernelspec"]["name"])
    except (KeyError, TypeError):
        return ""


def is_native(name: str) -> bool:
    """Return whether a name, or none, is that of Python's own kernel, which every runtime has."""
    return name in {"", "python", NATIVE}


def see_kernel(name: str) -> tuple[str, ...]:
    """Return the argv of the kernel of this name, before the output is touched.

    Raises
    ------
    GipfelError
        There is none; those that are there are named.
    """
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel  # noqa: PLC0415

    known = KernelSpecManager()
    try:
        # The language's name stands for its own kernel, as the kernel manager has it.
        return tuple(known.get_kernel_spec(NATIVE if name == "python" else name).argv)
    except NoSuchKernel:
        have = ", ".join(sorted(known.find_kernel_specs()))
        raise GipfelError(f"There is no kernel {name!r} here.", f"Give --kernel one of: {have}.") from None
