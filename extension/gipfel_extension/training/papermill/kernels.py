"""Which kernel a notebook asks for, and whether there is one of that name."""

from pathlib import Path

from gipfel_cluster.model import GipfelError

from ...telemetry.files import read_json
from ..notebook_file import MOST_NOTEBOOK_BYTES


def kernel_of(notebook: Path) -> str:
    """The name of the kernel that a notebook asks for.

    Raises
    ------
    GipfelError
        It can't be read or names none.
    """
    try:
        content = read_json(notebook, MOST_NOTEBOOK_BYTES, follow=True)
        name = content["metadata"]["kernelspec"]["name"]
    except OSError as error:
        raise GipfelError(
            f"The notebook {notebook} can't be read: {error.strerror}.", "Check the path."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise GipfelError(
            f"The notebook {notebook} names no kernel.", "Pick one in JupyterLab and save it."
        ) from error
    return str(name)


def see_kernel(name: str) -> None:
    """See that there is a kernel of this name, before the output is touched.

    Raises
    ------
    GipfelError
        There is none; those that are there are named.
    """
    from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager, NoSuchKernel  # noqa: PLC0415

    known = KernelSpecManager()
    try:
        # The language's name stands for its own kernel, as the kernel manager has it.
        known.get_kernel_spec(NATIVE_KERNEL_NAME if name == "python" else name)
    except NoSuchKernel:
        have = ", ".join(sorted(known.find_kernel_specs()))
        raise GipfelError(f"There is no kernel {name!r} here.", f"Give --kernel one of: {have}.") from None
