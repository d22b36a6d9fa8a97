"""Hostile messages on the broker's socket: it continues, and keeps nothing of them."""

import array
import contextlib
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from broker_jobs import connected, run_through, running_broker, said, until, write_edf

from gipfel_cluster.broker import messages
from gipfel_cluster.broker.client import run_in_container, send_request_sync
from gipfel_cluster.broker.context import JobContext
from gipfel_cluster.model import GipfelError
from gipfel_cluster.process.tree import descendants

_FACTS = messages.to_line(messages.FactsRequest())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobContext]:
    home = tmp_path_factory.mktemp("home")
    write_edf(home, "other")
    with running_broker(home) as context:
        with connected(context) as client:  # It has opened what it needs.
            client.sendall(_FACTS)
            assert said(client)
        yield context


@pytest.fixture(autouse=True)
def goes_on(broker: JobContext) -> Iterator[None]:
    """After every test the same broker answers, and holds no more than before."""
    before = _descriptors()
    yield
    with connected(broker) as client:
        client.sendall(_FACTS)
        assert said(client)["cluster"] == "here"
    until(lambda: _descriptors() <= before, 15)
    until(lambda: not list(Path(broker.scratch).glob("b*")), 5)


def _pid() -> int:
    (pid,) = [
        each for each in descendants(os.getpid())
        if b"gipfel_cluster.broker\0" in _words(each)
    ]  # fmt: skip
    return pid


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def _descriptors() -> int:
    return len(os.listdir(f"/proc/{_pid()}/fd"))


def test_only_its_owner_can_reach_the_socket(broker: JobContext) -> None:
    assert stat.S_IMODE(broker.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(broker.socket.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can act as another user.")
def test_another_user_is_refused_even_if_file_modes_allow_access(broker: JobContext) -> None:
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        's.sendall(b\'{"kind": "facts"}\\n\'); print(len(s.recv(1000)))'
    )
    argv = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", code, str(broker.socket)]
    closed = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert "PermissionError" in closed.stderr
    folders = (broker.socket, broker.socket.parent, Path(broker.scratch))
    for path in folders:
        path.chmod(0o777)
    try:
        opened = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    finally:
        for path in folders:
            path.chmod(0o600 if path == broker.socket else 0o700)
    assert opened.stdout.strip() == "0" or "Error" in opened.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"\n", b"no json\n", b"[]\n", b"null\n", b"{}\n", b'{"kind": "shell", "command": "id"}\n',
        b'{"kind": "run", "edf": "other", "command": []}\n', b'{"kind": "run", "edf": "other"}\n',
        b'{"kind": "run", "edf": "other", "command": ["a\\u0000b"]}\n',
        b'{"kind": "submit", "job": {"name": "a", "script": "id", "directory": "/"}}\n',
        b'{"kind": "submit", "job": {"name": "a\\n#SBATCH", "script": "#!/bin/sh", "directory": "/"}}\n',
        b'{"kind": "submit", "argv": ["sbatch", "--wrap=id"]}\n',
        b'{"kind": "submit", "job": {"name": "a", "script": "#!", "directory": "/", "user": "root;id"}}\n',
        b'{"kind": "cancel", "job_id": "--all"}\n', b'{"kind": "cancel", "job_id": "1 2"}\n',
        b'{"kind": "query", "job_ids": ["../../etc"]}\n', b'{"kind": "address", "node": "--help"}\n',
        b'{"kind": "facts", "more": 1}\n', b'{"kind": "facts", "version": 2}\n', b"\xff\xfe\x00\n",
        b"[" * 100_000 + b"\n", b'{"a":' * 50_000 + b"\n", b'{"kind": "facts"' + b" " * 400_000 + b"\n",
    ],
)  # fmt: skip
def test_an_invalid_request_is_refused_with_one_line(broker: JobContext, content: bytes) -> None:
    with connected(broker) as client:
        client.sendall(content)
        answer = said(client)
        assert set(answer) == {"problem", "fix"}
        assert len(answer["problem"]) < 400
        assert said(client) == {}


def test_another_protocol_version_is_named_in_the_refusal(broker: JobContext) -> None:
    with connected(broker) as client:
        client.sendall(b'{"kind": "facts", "version": 99}\n')
        assert "uses version 1" in said(client)["problem"]


def test_a_line_of_a_megabyte_is_refused(broker: JobContext) -> None:
    with connected(broker) as client:
        try:
            for _ in range(64):
                client.sendall(b"x" * (1 << 14))
        except OSError:
            pass
        answer = said(client)
    assert not answer or "no request longer" in answer["problem"]


def test_a_silent_client_is_disconnected(broker: JobContext) -> None:
    with connected(broker) as client, connected(broker) as slow:
        slow.sendall(b"{")
        began = time.monotonic()
        assert "time limit for this request was reached" in said(client)["problem"]
        assert said(slow)
        assert time.monotonic() - began < 20


def test_a_flood_of_connections_does_not_block_other_clients(broker: JobContext) -> None:
    flood = []
    for _ in range(300):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(5)
        try:
            client.connect(str(broker.socket))
        except OSError:
            client.close()
            continue
        flood.append(client)
    assert _descriptors() < 160
    for client in flood:
        client.close()


def test_many_concurrent_requests_are_all_answered(broker: JobContext) -> None:
    clients = [connected(broker) for _ in range(60)]
    for client in clients:
        client.sendall(_FACTS)
    for client in clients:
        assert said(client)["cluster"] == "here"
        client.close()


def test_a_command_over_the_limit_is_refused_with_a_message(broker: JobContext) -> None:
    request = messages.to_line(messages.RunRequest(edf="other", command=("sleep", "600")))
    with contextlib.ExitStack() as held, open(os.devnull, "r+b") as nothing:
        for _ in range(48):
            client = held.enter_context(connected(broker))
            socket.send_fds(client, [request], [nothing.fileno()] * 3)
            assert said(client) == {"notes": []}
        for _ in range(5):
            status, output, errors = run_through(broker, "other", "true")
            assert (status, output) == (1, "")
            assert errors == "gipfel: The broker already runs 48 commands. End a kernel and try again.\n"


def test_clients_wait_while_the_queue_is_full(broker: JobContext) -> None:
    pid = _pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with contextlib.ExitStack() as held:
            while True:
                client = held.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                try:
                    client.connect(str(broker.socket))
                except BlockingIOError:
                    break
            # The others go while both wait for their turn.
            with ThreadPoolExecutor(2) as beside:
                asked = beside.submit(
                    send_request_sync, broker.socket, messages.FactsRequest(), messages.FactsAnswer
                )
                ran = beside.submit(run_through, broker, "other", "true")
                time.sleep(1)
                held.close()
                os.kill(pid, signal.SIGCONT)
                assert asked.result(30).cluster == "here"
                assert ran.result(30) == (0, "", "")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_client_reports_a_broker_that_hangs(broker: JobContext) -> None:
    pid = _pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        request = messages.RunRequest(edf="other", command=("true",))
        with pytest.raises(GipfelError, match="did not answer within 1 s"):
            run_in_container(broker.socket, request, limit=1)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_full_disk_is_not_mistaken_for_a_disconnected_client(broker: JobContext) -> None:
    scratch = Path(broker.scratch)
    away = scratch.with_name(f"{scratch.name}-away")
    with connected(broker) as client, open(os.devnull, "r+b") as nothing:
        request = messages.to_line(messages.RunRequest(edf="other", command=("true",)))
        scratch.rename(away)
        try:
            socket.send_fds(client, [request], [nothing.fileno()] * 3)
            assert said(client)["problem"].startswith("The container can't be prepared: No such file")
        finally:
            away.rename(scratch)


def test_unexpected_descriptors_are_closed(broker: JobContext) -> None:
    for count in (1, 3, 50, 250):
        with connected(broker) as client:
            numbers = array.array("i", [0] * count)
            client.sendmsg([_FACTS], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
            assert set(said(client))
    with connected(broker) as client:
        line = messages.to_line(messages.RunRequest(edf="other", command=("true",)))
        client.sendall(line)
        assert "no descriptors for standard input" in said(client)["problem"]
    with connected(broker) as client:
        with contextlib.suppress(OSError):
            for byte in b'{"kind":':
                one = array.array("i", [0])
                client.sendmsg([bytes([byte])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, one)])
        assert "at most 3 descriptors" in said(client).get("problem", "at most 3 descriptors")


def test_garbage_instead_of_a_signal_ends_only_that_command(broker: JobContext) -> None:
    line = messages.to_line(messages.RunRequest(edf="other", command=("sleep", "61")))
    for content in (b"garbage\n", b'{"signal": 9}\n{"signal": 99}\n', b"x" * 100_000):
        with connected(broker) as client, open(os.devnull, "r+b") as nothing:
            socket.send_fds(client, [line], [nothing.fileno()] * 3)
            assert said(client) == {"notes": []}
            with contextlib.suppress(OSError):
                client.sendall(content)
            until(lambda: not _sleepers(), 10)


def _sleepers() -> list[int]:
    return [each for each in descendants(_pid()) if b"sleep\x0061" in _words(each)]


def test_a_client_that_never_reads_is_dropped(broker: JobContext) -> None:
    client = connected(broker)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.sendall(_FACTS)
    client.shutdown(socket.SHUT_WR)
    time.sleep(0.3)
    client.close()


def test_the_brokers_environment_and_arguments_contain_no_token(broker: JobContext) -> None:
    assert b"secret" not in Path(f"/proc/{_pid()}/environ").read_bytes()
    assert b"secret" not in Path(f"/proc/{_pid()}/cmdline").read_bytes()


def test_warning_signals_of_the_scheduler_do_not_end_the_broker(broker: JobContext) -> None:
    for number in (1, 2, 3, 10, 12):
        os.kill(_pid(), number)
    time.sleep(0.2)
    # And a command starts with every signal as the broker itself was given it.
    ask = ["sh", "-c", "grep -E 'Sig(Ign|Blk)' /proc/self/status"]
    inherited = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=30).stdout
    status, output, errors = run_through(broker, "other", *ask)
    assert status == 0, errors
    assert output == inherited
