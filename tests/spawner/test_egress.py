"""The gate around a command: its allow list, its proxy and log, in a network namespace of a real process."""

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gipfel_cluster.edf.gate import Gate, Gates
from gipfel_cluster.egress import inside_ranges
from gipfel_cluster.egress.__main__ import PROGRAM_NAME
from gipfel_cluster.egress.log import GateLog
from gipfel_cluster.egress.proxy import Proxy, RefusedError, search_domains
from gipfel_cluster.egress.start import VARIABLES, close_gates, gate_invocation
from gipfel_cluster.engines import Invocation


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.headers["Host"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[1]
        made.shutdown()


def _gates(*hosts: str) -> Gates:
    return Gates(gates=(Gate(allow=hosts),))


def _behind(gates: Gates, run: Path, program: str) -> Invocation:
    argv = (sys.executable, "-c", textwrap.dedent(program))
    environment = {**os.environ, **VARIABLES}
    return gate_invocation(
        Invocation(argv=argv, environment=environment), gates, run=str(run), node="n1", python=sys.executable
    )


def _run(gates: Gates, run: Path, program: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    made = _behind(gates, run, program)
    return subprocess.run(
        made.argv,
        env=made.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **kwargs,  # type: ignore[call-overload]
    )


def _log(run: Path) -> dict[tuple[str, int, str, bool], dict[str, object]]:
    lines = [line for path in (run / "gate").glob("*.jsonl") for line in path.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return {(row["name"], row["port"], row["protocol"], row["allowed"]): row for row in rows}


def test_programs_reach_what_is_allowed_and_the_rest_is_logged(tmp_path: Path, server: int) -> None:
    done = _run(
        _gates(f"127.0.0.1:{server}"),
        tmp_path,
        f"""
        import os, socket, urllib.error, urllib.request
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
        print(urllib.request.urlopen("http://127.0.0.1:{server}/x").read().decode())
        for url in ("http://evil.example/", "http://127.0.0.1:9/"):
            try:
                urllib.request.urlopen(url)
            except urllib.error.HTTPError as error:
                print(error.code, error.read().decode().strip())
        for address in (("203.0.113.7", 5000), ("2001:db8::1", 25), ("203.0.113.8", 443)):
            try:
                socket.create_connection(address, 5).recv(1)
            except OSError as error:
                print(type(error).__name__)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.sendto(b"secret", ("203.0.113.9", 999))
        try:
            socket.getaddrinfo("leak.example", 443)
        except OSError as error:
            print("no name")
        # The node's own addresses lead to the program itself, so that ranks find each other.
        own = socket.create_server(("10.1.2.3", 29500))
        socket.create_connection(("10.1.2.3", 29500), 5)
        raise SystemExit(7)
        """,
    )
    assert done.returncode == 7, done.stderr
    refused = "gipfel: The gate of this job refuses"
    assert done.stdout.splitlines() == [
        f"127.0.0.1:{server}",
        f"403 {refused} evil.example:80: not on the allow list.",
        f"403 {refused} 127.0.0.1:9: not on the allow list.",
        "ConnectionRefusedError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "no name",
    ]
    log = _log(tmp_path)
    assert log["127.0.0.1", server, "tcp", True]["received"]
    # Of the head of the request, in which data could leave.
    assert log["127.0.0.1", server, "tcp", True]["sent"]
    assert {key for key in log if not key[3]} == {
        ("evil.example", 80, "tcp", False),
        ("127.0.0.1", 9, "tcp", False),
        ("203.0.113.7", 5000, "tcp", False),
        ("2001:db8::1", 25, "tcp", False),
        ("203.0.113.8", 443, "tcp", False),
        ("203.0.113.9", 999, "udp", False),
        ("leak.example", 53, "dns", False),
    }


def test_an_operator_ends_the_network_and_not_the_program(tmp_path: Path, server: int) -> None:
    program = f"""
        import http.client, os, time, urllib.error, urllib.request
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({{"http": "http://127.0.0.1:3128"}}))
        opener.open("http://127.0.0.1:{server}/").read()
        print("open", flush=True)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                opener.open("http://127.0.0.1:{server}/").read()
            except urllib.error.HTTPError as error:
                print(error.read().decode())
                break
            except (OSError, http.client.HTTPException):
                pass  # a connection that was open is cut
            time.sleep(0.1)
    """

    def close() -> None:
        end = time.monotonic() + 30
        while not ((tmp_path / "gate").is_dir() and _log(tmp_path)) and time.monotonic() < end:
            time.sleep(0.05)
        close_gates(tmp_path, "operator ada", "it crawls", time.time_ns())

    threading.Thread(target=close).start()
    done = _run(_gates(f"127.0.0.1:{server}"), tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert "operator ada ended the network of this job: it crawls" in done.stdout


def test_the_way_out_ends_with_the_program_and_can_not_be_entered(tmp_path: Path) -> None:
    program = """
        import os, pathlib, time
        found = [each for each in pathlib.Path("/proc").iterdir() if each.name.isdecimal()]
        for each in found:
            try:
                if (each / "comm").read_text() == "gipfel-gate\\n":
                    os.readlink(each / "cwd")
                    print("entered")
            except PermissionError:
                print(each.name)
            except OSError:
                continue
    """
    done = _run(_gates(), tmp_path, program, cwd=tmp_path)
    pids = done.stdout.split()
    assert pids, done
    assert "entered" not in pids
    _wait_for_end(pids, tmp_path)
    assert not [pid for pid in pids if _runs_in(pid, tmp_path)]


def test_what_is_refused_just_before_the_end_is_logged(tmp_path: Path) -> None:
    program = """
        import socket
        print("ready", flush=True)
        input()
        for host in ("203.0.113.7", "203.0.113.8"):
            try:
                socket.create_connection((host, 5000), 5)
            except ConnectionRefusedError:
                print("refused")
    """
    made = _behind(_gates(), tmp_path, program)
    with subprocess.Popen(
        made.argv, env=made.environment, cwd=tmp_path, stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        gate = _gate_in(tmp_path)
        # Stopped meanwhile, as on a busy machine: it sees refusals and end at once.
        os.kill(int(gate), signal.SIGSTOP)
        try:
            output, _ = process.communicate("\n", 60)
        finally:
            os.kill(int(gate), signal.SIGCONT)
    assert output.split() == ["refused", "refused"]
    _wait_for_end([gate], tmp_path)
    assert {key[0] for key in _log(tmp_path)} == {"203.0.113.7", "203.0.113.8"}


def _gate_in(folder: Path) -> str:
    """Return the process id of the gate that was started in a directory, once it runs."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for comm in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                if comm.read_text() == f"{PROGRAM_NAME}\n" and _runs_in(comm.parent.name, folder):
                    return comm.parent.name
        time.sleep(0.05)
    raise AssertionError("There is no gate.")


def _wait_for_end(pids: list[str], folder: Path) -> None:
    """Wait until none of these processes runs in a directory, ten seconds at most."""
    end = time.monotonic() + 10
    while any(_runs_in(pid, folder) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)


def _runs_in(pid: str, folder: Path) -> bool:
    try:
        return Path("/proc", pid, "cwd").readlink() == folder
    except OSError:
        return False


def _serve(proxy: Proxy, *, direct: bool = False) -> tuple[socket.socket, int]:
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        try:
            while True:
                proxy.accept(listener, direct=direct)
        except OSError:
            pass

    threading.Thread(target=accept, daemon=True).start()
    return listener, listener.getsockname()[1]


def _ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        found = b""
        while piece := client.recv(1 << 16):
            found += piece
        return found


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
        "CONNECT allowed.example HTTP/2\r\n\r\n",
        "CONNECT allowed.example:0 HTTP/1.1\r\n\r\n",
        "CONNECT user@allowed.example:443 HTTP/1.1\r\n\r\n",
        "GET https://allowed.example/ HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\r\n\r\n",
        "GET ftp://allowed.example/ HTTP/1.1\r\n\r\n",
        # A lenient server would find a second Host in these.
        "GET http://allowed.example/ HTTP/1.1\r\nX: a\nHost: evil.example\r\n\r\n",
        "GET http://allowed.example/ HTTP/1.1\r\nX: a\rHost: evil.example\r\n\r\n",
        "GET http://allowed.example/a\nHost:evil HTTP/1.1\r\n\r\n",
        f"CONNECT {'a' * 80}.below.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT ..below.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT \x1b[2Jbelow.example:443 HTTP/1.1\r\n\r\n",
        "",
    ],
)
def test_a_request_that_can_not_be_read_is_refused(request_text: str) -> None:
    listener, port = _serve(Proxy(_gates("allowed.example", "*.below.example"), GateLog(None, "n1")))
    with listener:
        assert _ask(port, request_text.encode("latin-1")).startswith(b"HTTP/1.1 400 ")


def test_a_request_reaches_the_host_that_it_names_and_not_another(server: int) -> None:
    log = GateLog(None, "n1")
    proxy = Proxy(_gates(f"localhost:{server}", "127.0.0.1:1"), log, lambda *_: ["127.0.0.1"])
    listener, port = _serve(proxy)
    with listener:
        rebound = _ask(port, f"GET http://localhost:{server}/ HTTP/1.1\r\n\r\n".encode())
    assert b"403" in rebound.splitlines()[0]
    assert b"its name is an address of this machine" in rebound
    listener, port = _serve(Proxy(_gates(f"127.0.0.1:{server}"), log))
    with listener:
        request = f"GET http://127.0.0.1:{server}/ HTTP/1.1\r\nHost: other.example\r\n\r\n"
        assert _ask(port, request.encode()).endswith(f"\r\n\r\n127.0.0.1:{server}".encode())


@pytest.mark.parametrize(
    ("entry", "address", "reason"),
    [
        ("*.below.example", "10.1.2.3", "an address of the cluster"),
        ("*.below.example", "::ffff:192.168.0.1", "an address of the cluster"),
        ("*.below.example", "fd00::1", "an address of the cluster"),
        ("*.below.example", "169.254.169.254", "an address of this machine"),
        ("a.below.example", "0.0.0.0", "an address of this machine"),
        ("a.below.example", "::ffff:127.0.0.1", "an address of this machine"),
        ("a.below.example", "::", "an address of this machine"),
        ("*.below.example", "", "it has no address"),
    ],
)
def test_a_name_does_not_open_this_machine_or_the_cluster(entry: str, address: str, reason: str) -> None:
    log = GateLog(None, "n1")
    listener, port = _serve(Proxy(_gates(entry), log, lambda *_: [address] if address else []))
    with listener:
        said = _ask(port, b"CONNECT a.below.example:443 HTTP/1.1\r\n\r\n").decode()
    assert "403" in said.splitlines()[0]
    assert reason in said


def test_a_name_that_is_listed_or_the_sites_may_be_in_the_cluster(tmp_path: Path) -> None:
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("# search none.example\nnameserver 192.0.2.1\nsearch Below.example. other.example\n")
    assert search_domains(resolv) == ("below.example", "other.example")
    assert search_domains(tmp_path / "missing") == ()
    log = GateLog(None, "n1")
    inside = inside_ranges({"GIPFEL_NETWORK_INSIDE": "192.0.2.0/24"})
    for entry, further, allowed in (
        ("a.below.example", {}, True),
        ("*.below.example", {"domains": search_domains(resolv)}, True),
        ("*.below.example", {"domains": ("example.below.example", "low.example")}, False),
        ("*.below.example", {"inside": inside}, True),
    ):
        proxy = Proxy(_gates(entry), log, lambda *_: ["10.1.2.3"], **further)
        if allowed:
            assert proxy._public("a.below.example", ["10.1.2.3"]) == ["10.1.2.3"]
        else:
            with pytest.raises(RefusedError):
                proxy._public("a.below.example", ["10.1.2.3"])
