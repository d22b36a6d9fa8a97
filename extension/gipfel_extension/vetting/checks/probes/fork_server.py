"""Import torch once, then fork a child for each probe that is asked for: importing takes longer than probing.

Started with the number of a socket and its parent's process number. The first message sent is
``{"seconds": …, "error": …}`` of the import. Each message received is ``{"argv": […], "environment": {…}}``
with four descriptors: standard input, output and errors of the child, and a socket on which ``{"pid": …}``
and ``{"status": …}`` are sent. A child is killed with its session when the other end of that socket is
closed. No GPU is touched here: a child that is forked behind an initialized CUDA could not use it.
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
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LARGEST = 1 << 16
_REAP_S = 0.02
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def main() -> None:
    """Serve until the other end is closed."""
    server = socket.socket(fileno=int(sys.argv[1]))
    die_with(int(sys.argv[2]))
    started = time.perf_counter()
    error = problem_of_import()
    server.send(json.dumps({"seconds": time.perf_counter() - started, "error": error}).encode())
    if not error:
        serve(server)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent is gone."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def prctl(option: int, value: Any) -> None:
    """Set a property of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def problem_of_import() -> str:
    """Import torch; return why its children could not use it, empty where they can."""
    try:
        import torch  # noqa: PLC0415
        import torch.distributed  # noqa: F401, PLC0415
    except Exception as error:  # noqa: BLE001 - each probe will say it by itself
        return f"{type(error).__name__}: {str(error)[:300]}"
    opened = [device for device in open_files() if device.startswith(_DEVICES)]
    return f"importing torch opened {opened[0]}" if opened else ""


def open_files() -> list[str]:
    """Return the files that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - Python 3.9
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
    return found


def serve(server: Any) -> None:
    """Fork what is asked for, say how each child ended, and kill those that nobody waits for."""
    children: dict[int, Any] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select(_REAP_S if children else None):
                if key.data:
                    # Nothing is ever sent on a child's socket: the other end is closed.
                    ready.unregister(key.fileobj)
                    kill(key.data)
                    continue
                message, descriptors, _, _ = socket.recv_fds(server, _LARGEST, 4)
                if not message:
                    return
                begin(server, json.loads(message), descriptors, children, ready)
            reap(children, ready)


def begin(server: Any, request: Any, descriptors: Any, children: Any, ready: Any) -> None:
    """Fork one child."""
    control = socket.socket(fileno=descriptors[3])
    own = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        # Closing its socket says so.
        control.close()
    else:
        if pid == 0:
            for each in (server, control, *children.values()):
                each.close()
            become(own, request, descriptors[:3])
        children[pid] = control
        ready.register(control, selectors.EVENT_READ, pid)
        say(control, {"pid": pid})
    for descriptor in descriptors[:3]:
        os.close(descriptor)


def become(server: int, request: Any, descriptors: Any) -> None:
    """Run the probe in this child, which ends here."""
    status = 1
    try:
        os.setsid()
        die_with(server)
        for target, source in enumerate(descriptors):
            os.dup2(source, target)
            os.close(source)
        os.environ.update(request["environment"])
        sys.argv = list(request["argv"])
        # What `ps` shows: its command line stays the server's.
        prctl(_PR_SET_NAME, os.path.basename(sys.argv[0]).encode())  # noqa: PTH119
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
    """Say of each child that has ended how it did."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            continue
        control = children.pop(pid)
        with contextlib.suppress(KeyError, ValueError):
            ready.unregister(control)
        # What it has left behind in its session.
        kill(pid)
        say(control, {"status": os.waitstatus_to_exitcode(status)})
        control.close()


def kill(pid: int) -> None:
    """Kill a child with all that it has started."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        # It may not have its session yet; after its end there is none of this number.
        os.kill(pid, signal.SIGKILL)


def say(control: Any, message: Any) -> None:
    """Send a message to whoever asked, if anybody still listens."""
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


if __name__ == "__main__":
    main()
