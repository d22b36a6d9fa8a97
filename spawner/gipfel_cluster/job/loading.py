"""The program of a job on the host, which loads while the job's recorder and broker are started."""

import importlib
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..forking import ForkedProgram, can_fork

_MODULE = ("-I", "-m")
_ENTER = ("env", "--chdir")
_WORDS = 4  # the interpreter, -I, -m and the module


class LoadingProgram:
    """A package of the interpreter that runs this, in a fork that has what this process has loaded.

    It runs as ``python -I -m PACKAGE …`` would once it is begun; without that it ends with this process.

    Parameters
    ----------
    argv
        What it would be started by.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self._forked = ForkedProgram(argv, self._main, os.environ, output="parent")

    @classmethod
    def of(cls, argv: Sequence[str]) -> "LoadingProgram | None":
        """Return the program of a command; None where it is not such a module, or can't be a fork of this."""
        ours = len(argv) >= _WORDS and (argv[0], *argv[1:3]) == (sys.executable, *_MODULE)
        if not ours or not can_fork():
            return None
        # Where there can't be another process, starting the command says so.
        with suppress(OSError):
            return cls(argv)
        return None

    def begin(
        self, argv: Sequence[str], environment: Mapping[str, str], directory: str
    ) -> ForkedProgram | None:
        """Let it run as this command would, in a directory; None where the command is another one."""
        enter, command = list(argv[: -len(self._argv)]), list(argv[-len(self._argv) :])
        # Without a container, `env` enters the working folder of the EDF.
        if len(enter) == len(_ENTER) and (Path(enter[0]).name, enter[1].partition("=")[0]) == _ENTER:
            enter, directory = [], enter[1].partition("=")[2]
        if not enter and command == self._argv:
            given = {"environment": dict(environment), "directory": directory}
            with suppress(OSError), self._forked.stdin as stdin:
                stdin.write(json.dumps(given).encode() + b"\n")
                return self._forked
        self.dismiss()
        return None

    def dismiss(self) -> None:
        """End it before it began."""
        with suppress(OSError):
            self._forked.stdin.close()
        self._forked.wait()

    def _main(self) -> int:
        module = self._argv[3]
        with suppress(ImportError):  # which is said when it is run
            importlib.import_module(f"{module}.__main__")
        # Its imports stay; it is imported once more as the program.
        sys.modules.pop(f"{module}.__main__", None)
        line = sys.stdin.readline()
        if not line:
            return 0
        given = json.loads(line)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.environ.clear()
        os.environ.update(given["environment"])
        os.chdir(given["directory"])
        sys.argv = ["", *self._argv[_WORDS:]]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if isinstance(ended.code, str):
                sys.stderr.write(f"{ended.code}\n")
                return 1
            return ended.code or 0
        return 0
