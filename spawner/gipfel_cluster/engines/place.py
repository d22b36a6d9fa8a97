"""Needs of an engine on the machine that runs the container; noted where it is only rendered."""

import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from ..edf.check import check_mount
from ..edf.model import Mount
from ..model import GipfelError
from .protocol import ContainerRequest

_Value = TypeVar("_Value")
#: The package of each program, where the two differ.
_PACKAGES = {"bwrap": "bubblewrap"}


class Place:
    """The machine that a request is rendered on.

    Where the request is only shown, which may be on a login node or a laptop, what is missing becomes a
    note; else it is an error.
    """

    def __init__(self, request: ContainerRequest) -> None:
        self._only_shown = request.only_shown
        self.notes: list[str] = []

    def check(self, check: Callable[[], None]) -> bool:
        """Call what raises when something is missing; tell whether it is there.

        Raises
        ------
        GipfelError
            It is missing, and the request is to be run.
        """

        def checked() -> bool:
            check()
            return True

        return self.value(checked, otherwise=False)

    def check_mounts(self, mounts: Iterable[Mount]) -> None:
        """See that the source of each mount is there and can be read.

        Raises
        ------
        GipfelError
            One is not, and the request is to be run; or it has none, as ``tmpfs``.
        """
        for mount in mounts:
            if mount.is_special:
                # On no machine these engines make it.
                check_mount(mount)
            self.check(partial(check_mount, mount))

    def value(self, get: Callable[[], _Value], otherwise: _Value) -> _Value:
        """Give what a function returns; where it raises and the request is only shown, something else.

        Raises
        ------
        GipfelError
            It raised, and the request is to be run.
        """
        try:
            return get()
        except GipfelError as error:
            if not self._only_shown:
                raise
            self.notes.append(f"Not on this machine: {error.problem}")
            return otherwise

    def program(self, name: str) -> str:
        """Give the path of a program; its name where it is only shown and not here.

        Raises
        ------
        GipfelError
            It is not on PATH, and the request is to be run.
        """
        found = shutil.which(name)
        if found is None:
            self.check(lambda: _refuse_program(name))
        return found or name

    def squashfuse(self) -> str:
        """Give the path of the program that mounts images for a plain user.

        Raises
        ------
        GipfelError
            It is missing, or may not be used on this machine, and the request is to be run.
        """
        self.check(_check_fuse)
        # Not squashfuse_ll, which can't make the files the user's own.
        return self.program("squashfuse")


def _refuse_program(name: str) -> None:
    raise GipfelError(
        f"The program {name} is not on PATH.", f"Install the package {_PACKAGES.get(name, name)}."
    )


def _check_fuse() -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise GipfelError(
            "A .sqsh image needs /dev/fuse, which you may not use on this machine.",
            "Ask for read and write permission on /dev/fuse, or give an unpacked image.",
        )
