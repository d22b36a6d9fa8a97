"""``python -m gipfel_extension.training.papermill_engine``: papermill as a job runs it on a shared node.

The arguments are papermill's own, the notebook first; `RECORDED` stands for the parameters in the run's
record, whose values nobody else on the node must read. Messages to the kernel go through files of the user's
own (``ipc``) instead of ports of the node, and an error is the notebook's, without the stack of what ran it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from papermill.cli import papermill
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.runs import RunFolder

from ..kernels import NATIVE, offer_image_kernel
from .notebook_file import RECORDED, unbraced

NAME = "gipfel"


class GipfelEngine(NBClientEngine):  # type: ignore[misc]
    """Papermill's own engine on a private transport."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
        """Execute the notebook that `nb_man` holds."""
        private = Config({"KernelManager": {"transport": "ipc"}})
        return super().execute_managed_notebook(nb_man, kernel_name, config=private, **options)


def main(arguments: Sequence[str]) -> int:
    """Run a notebook; 1 where a cell fails or it can't be run, 138 where its kernel dies."""
    papermill_engines.register(NAME, GipfelEngine)
    try:
        problem = offer_image_kernel(os.environ)
        if _kernel(arguments) == NATIVE and problem:
            sys.stderr.write(f"gipfel: {problem} The notebook runs with Gipfel's Python instead.\n")
        papermill.main([*_words(arguments, os.environ), "--engine", NAME], "papermill", standalone_mode=False)
    except PapermillExecutionError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.write(f"gipfel: The notebook failed: {one_line(f'{error.ename}: {error.evalue}')}\n")
        return 1
    except GipfelError as error:
        sys.stderr.write(f"gipfel: The notebook can't be run: {one_line(str(error))}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - what a kernel's start or a file raises, in one line
        sys.stderr.write(
            f"gipfel: The notebook can't be run: {one_line(f'{type(error).__name__}: {error}')}\n"
        )
        return 1
    return 0


def _words(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    words = [word for word in arguments if word != RECORDED]
    if len(words) < len(arguments):
        options = RunFolder(Path(environment["GIPFEL_RUN"])).read_record().get("options", {})
        words += [word for name, value in options.get("parameters", ()) for word in ("-p", name, value)]
    return words


def _kernel(arguments: Sequence[str]) -> str:
    """The kernel's name; it is looked for before papermill writes the first lines of its output."""
    content = json.loads(unbraced(arguments[0]).read_bytes())
    asked = dict(pairwise(arguments)).get("--kernel")
    name: str = asked or content["metadata"]["kernelspec"]["name"]
    known = KernelSpecManager()
    try:
        known.get_kernel_spec(name)
    except NoSuchKernel:
        have = ", ".join(sorted(known.find_kernel_specs()))
        raise GipfelError(f"There is no kernel {name!r} here.", f"Give --kernel one of: {have}.") from None
    return name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
