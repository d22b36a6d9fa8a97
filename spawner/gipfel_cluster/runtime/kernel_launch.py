"""Start ipykernel without a port on the node: ``python3 kernel_launch.py -f CONNECTION_FILE``.

It replaces ``-m ipykernel_launcher`` for kernels with the transport ``ipc``. It runs with the kernel's own
Python, 3.7 or newer, and imports the standard library and ipykernel only.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

_LAUNCHERS = ("ipykernel_launcher", "ipykernel")


def with_private_sockets(argv: list[str]) -> list[str]:
    """Return a kernel's argv with this program instead of ipykernel's; any other argv is unchanged."""
    for index in range(len(argv) - 1):
        if argv[index] == "-m" and argv[index + 1] in _LAUNCHERS:
            return [*argv[:index], os.path.abspath(__file__), *argv[index + 2 :]]  # noqa: PTH100
    return argv


def launch(arguments: list[str] | None = None, **options: Any) -> None:
    """Run ipykernel with `private_pipe`."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - also for an old Python
    # Python puts a script's directory first on the path; ipykernel puts the notebook's there.
    sys.path[:] = [each for each in sys.path if each not in ("", here)]
    from ipykernel import kernelapp  # noqa: PLC0415 - after sys.path was changed

    # An idle kernel is interrupted before it is shut down, which ipykernel reports as an error.
    logging.getLogger("IPKernelApp").addFilter(
        lambda each: "KeyboardInterrupt caught" not in each.getMessage()
    )
    application: Any = kernelapp
    application.IOPubThread = private_pipe(application.IOPubThread)
    application.IPKernelApp.launch_instance(arguments, **options)


def private_pipe(base: Any) -> Any:
    """Return a subclass of ipykernel's output thread that uses a socket file for output of forked children.

    ipykernel itself opens a port on the node for it and reads all data that arrives: another user could fill
    the kernel's memory. For a kernel with the transport ``tcp`` nothing changes.
    """
    import zmq  # noqa: PLC0415 - ipykernel's own
    from zmq.eventloop.zmqstream import ZMQStream  # noqa: PLC0415

    class PrivatePipe(base):  # type: ignore[misc]
        def __init__(self, socket: Any, pipe: bool = False, **more: Any) -> None:  # noqa: FBT001, FBT002
            last = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
            self._endpoint = last + "p" if last.startswith("ipc://") else ""
            # For an unknown version of ipykernel, output of forked children is lost, but no port is opened.
            known = hasattr(base, "_setup_pipe_in") and hasattr(base, "_setup_pipe_out")
            super().__init__(socket, pipe=pipe and (known or not self._endpoint), **more)

        def _setup_pipe_in(self) -> None:
            if not self._endpoint:
                super()._setup_pipe_in()
                return
            self._pipe_uuid = os.urandom(16)
            pipe = self.socket.context.socket(zmq.PULL)
            pipe.linger = 0
            pipe.bind(self._endpoint)
            self._pipe_in = ZMQStream(pipe, self.io_loop)
            self._pipe_in.on_recv(self._handle_pipe_msg)

        def _setup_pipe_out(self) -> Any:
            if not self._endpoint:
                return super()._setup_pipe_out()
            # The child needs a new context: its parent's does not survive the fork.
            context = zmq.Context()
            pipe = context.socket(zmq.PUSH)
            pipe.linger = 3000
            pipe.connect(self._endpoint)
            return context, pipe

    return PrivatePipe


if __name__ == "__main__":
    launch()
