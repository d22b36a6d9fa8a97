"""Import torch once, then fork a child for each requested probe: the import takes longer than a probe.

The arguments are the descriptor of a socket and the parent's process ID. The server first sends ``{"seconds":
…, "error": …}`` of the import. Each request is ``{"argv": […], "environment": {…}}`` with four descriptors:
standard input, output and error of the child, and a socket to which ``{"pid": …}`` and ``{"status": …}`` are
sent. A child is killed with its session when the other end of that socket is closed. The server uses no GPU:
after CUDA is initialized, forked children could not use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_MAX_MESSAGE_BYTES = 1 << 16
_REAP_INTERVAL_S = 0.02
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def main() -> None:
    """Serve until the other end of the socket is closed."""
    server = socket.socket(fileno=int(sys.argv[1]))
    die_with(int(sys.argv[2]))
    started = time.perf_counter()
    error = import_torch()
    server.send(json.dumps({"seconds": time.perf_counter() - started, "error": error}).encode())
    if not error:
        serve(server)


def die_with(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def prctl(option: int, value: Any) -> None:
    """Call prctl, which sets a property of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def import_torch() -> str:
    """Import torch, and return why forked children can't use it; empty if they can."""
    try:
        import torch  # noqa: PLC0415
        import torch.distributed  # noqa: F401, PLC0415
    except Exception as error:  # noqa: BLE001 - each probe will report it
        return f"{type(error).__name__}: {str(error)[:300]}"
    opened = [device for device in open_files() if device.startswith(_DEVICES)]
    return f"importing torch opened {opened[0]}" if opened else ""


def open_files() -> list[str]:
    """Return the open files of this process."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return found


def serve(server: Any) -> None:
    """Fork requested probes, report their ends, and kill those whose socket was closed."""
    children: dict[int, Any] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select(_REAP_INTERVAL_S if children else None):
                if key.data:
                    # Nothing is sent to this socket, so the other end was closed.
                    ready.unregister(key.fileobj)
                    kill(key.data)
                    continue
                message, descriptors, _, _ = socket.recv_fds(server, _MAX_MESSAGE_BYTES, 4)
                if not message:
                    return
                fork_child(server, json.loads(message), descriptors, children, ready)
            reap(children, ready)


def fork_child(server: Any, request: Any, descriptors: Any, children: Any, ready: Any) -> None:
    """Fork a child for one request."""
    control = socket.socket(fileno=descriptors[3])
    server_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        # Closing the socket reports the failure.
        control.close()
    else:
        if pid == 0:
            for each in (server, control, *children.values()):
                each.close()
            run_probe(server_pid, request, descriptors[:3])
        children[pid] = control
        ready.register(control, selectors.EVENT_READ, pid)
        send(control, {"pid": pid})
    for descriptor in descriptors[:3]:
        os.close(descriptor)


def run_probe(server_pid: int, request: Any, descriptors: Any) -> None:
    """Run the probe in this child process, and exit."""
    status = 1
    try:
        os.setsid()
        die_with(server_pid)
        for target, source in enumerate(descriptors):
            os.dup2(source, target)
            os.close(source)
        os.environ.update(request["environment"])
        sys.argv = list(request["argv"])
        # Set the name that `ps` shows; the command line remains that of the server.
        prctl(_PR_SET_NAME, Path(sys.argv[0]).name.encode())
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - a child of a fork never returns into its parent's code
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def reap(children: Any, ready: Any) -> None:
    """Report the exit status of each child that has ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            continue
        control = children.pop(pid)
        with contextlib.suppress(KeyError, ValueError):
            ready.unregister(control)
        # Kill processes that the child left behind in its session.
        kill(pid)
        send(control, {"status": os.waitstatus_to_exitcode(status)})
        control.close()


def kill(pid: int) -> None:
    """Kill a child and all processes of its session."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        # The child may not have created its session yet.
        os.kill(pid, signal.SIGKILL)


def send(control: Any, message: Any) -> None:
    """Send a message, unless the other end is closed."""
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


if __name__ == "__main__":
    main()
