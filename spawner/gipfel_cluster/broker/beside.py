"""The broker beside a job: started before it, ended after it, and never in its way."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from .serving import listen
from .surroundings import Surroundings

_END_S = 10.0


@contextlib.contextmanager
def broker_beside(surroundings: Surroundings) -> Iterator[None]:
    """Keep a broker for as long as this block lasts; a job goes on without one that can't start or dies."""
    try:
        process, life = _start(surroundings)
    except OSError as error:
        sys.stderr.write(f"gipfel: the job runs without its broker: {error}\n")
        yield
        return
    try:
        yield
    finally:
        # The end of the pipe, which the kernel brings about too when this process is killed.
        os.close(life)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(surroundings: Surroundings) -> tuple[subprocess.Popen[bytes], int]:
    """Start the broker in a session of its own, so that a signal to the workload does not reach it."""
    given = os.memfd_create("surroundings")
    reader, writer = os.pipe()
    try:
        with os.fdopen(os.dup(given), "wb") as file:
            file.write(surroundings.model_dump_json().encode())
        os.lseek(given, 0, os.SEEK_SET)
        # Made here, so that no client comes before the socket is there.
        with listen(surroundings.socket) as listener:
            words = (str(listener.fileno()), str(reader))
            process = subprocess.Popen(
                (sys.executable, "-I", "-m", "gipfel_cluster.broker", *words),
                env={name: value for name, value in surroundings.host.items() if "TOKEN" not in name},
                stdin=given,
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(), reader),
                start_new_session=True,
                cwd="/",
            )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(given)
        os.close(reader)
    return process, writer
