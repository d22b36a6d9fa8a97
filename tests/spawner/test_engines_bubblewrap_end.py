"""Input, variables and signals of a real container, and its end."""

import os
import pty
import signal
import time
from pathlib import Path

import bubblewrap_sandboxes
import pytest
from bubblewrap_sandboxes import gone

from gipfel_cluster.engines.bubblewrap import Bubblewrap

image, sandboxes = bubblewrap_sandboxes.image, bubblewrap_sandboxes.sandboxes
shared, user = bubblewrap_sandboxes.shared, bubblewrap_sandboxes.user
pytestmark = pytest.mark.skipif(
    Bubblewrap().unavailable_reason() is not None, reason=str(Bubblewrap().unavailable_reason())
)


def test_stdin_comes_through(sandboxes, image):
    content = os.urandom(300_000).hex().encode()
    assert sandboxes.run(image, "cat", stdin=content)[:2] == (0, content.decode())


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 1", 1), ("exit 42", 42), ("kill -9 $$", 137)]
)
def test_the_exit_status_comes_back(sandboxes, image, script, status):
    assert sandboxes.shell(image, script) == (status, "", "")


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1", "USR2", "QUIT"])
def test_signals_reach_the_command_once(sandboxes, image, name):
    # A shell that waits in the foreground handles a signal only afterwards.
    trap = f"n=0; trap 'n=$((n+1)); echo {name}' {name}; echo ready"
    script = f"{trap}; for i in 1 2 3 4 5 6; do sleep 0.1; done; exit 3$n"
    process = sandboxes.start(image, ["sh", "-c", script])
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(getattr(signal, f"SIG{name}"))
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (31, f"{name}\n".encode())


def test_ctrl_c_at_a_terminal_reaches_the_command_once(sandboxes, image):
    script = (
        "n=0; trap 'n=$((n+1))' INT; echo ready; for i in 1 2 3 4 5 6; do sleep 0.1; done; exit $((30+n))"
    )
    argv, environment = sandboxes.invocation(image, ["sh", "-c", script])
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(argv[0], argv, environment)
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 31
    os.close(terminal)


def test_a_signal_without_a_handler_ends_the_command(sandboxes, image):
    process = sandboxes.start(image, ["sh", "-c", "echo ready; exec sleep 300"])
    process.stdout.readline()
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    gone(sandboxes.left)


@pytest.mark.parametrize("when", ["at once", "when it runs"])
def test_sigkill_leaves_no_process_and_no_mount(sandboxes, image, when):
    process = sandboxes.start(image, ["sh", "-c", "sleep 300 & sleep 300 & echo ready; wait"])
    if when == "when it runs":
        process.stdout.readline()
        assert len(sandboxes.left()) >= 6
    else:
        time.sleep(0.05)
    process.kill()
    process.wait(10)
    gone(sandboxes.left)


def test_the_end_of_the_parent_leaves_no_process_and_no_mount(sandboxes, image):
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    command = ["sh", "-c", "echo ready; sleep 300"]
    process = sandboxes.start(image, command, prefix=["/usr/bin/python3", "-c", code])
    process.stdout.readline()
    process.kill()
    process.wait(10)
    gone(sandboxes.left)


def test_the_end_of_the_command_ends_what_it_left_in_the_background(sandboxes, image):
    script = "sleep 300 </dev/null >/dev/null 2>&1 & exit 4"
    assert sandboxes.shell(image, script)[0] == 4
    gone(sandboxes.left)


def test_a_variable_is_in_no_argv(sandboxes, image):
    secret = os.urandom(16).hex()
    process = sandboxes.start(
        image,
        ["sh", "-c", "echo ready; exec sleep 300"],
        environment={"TOKEN": secret},
        env={"OTHER": secret},
    )
    process.stdout.readline()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert secret.encode() not in entry.read_bytes()
        except OSError:
            continue


def test_a_hundred_thousand_bytes_of_variables(sandboxes, image):
    many = {f"V{number}": "x" * 1000 for number in range(300)}
    status, out, _ = sandboxes.shell(image, "echo $V0 $V299", environment=many)
    assert (status, len(out)) == (0, 2002)
