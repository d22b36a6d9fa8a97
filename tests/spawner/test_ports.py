"""A range of ports: parsed strictly, used port by port, never shared."""

import http.server
import socket
import threading
from pathlib import Path

import pytest
from hub_process import HubProcess
from hypothesis import given
from hypothesis import strategies as st

from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PortRange, bind_port, free_ports


def free_run(count: int) -> int:
    """Return the first of several consecutive free ports."""
    for first in range(20000, 60000, 50):
        held = []
        try:
            held = [socket.create_server(("", first + each)) for each in range(count)]
        except OSError:
            continue
        finally:
            for each in held:
                each.close()
        if len(held) == count:
            return first
    raise AssertionError("no free ports")


@pytest.mark.parametrize("text", ["", "  "])
def test_no_range_means_any_port(text):
    assert PortRange.parse(text) is None


def test_a_range_includes_both_ends():
    ports = PortRange.parse("8400-8402")
    assert [each in ports for each in (8399, 8400, 8402, 8403)] == [False, True, True, False]
    assert [each in ports for each in (True, "8400", 8400.0, None)] == [False] * 4
    assert sorted(ports.shuffled()) == [8400, 8401, 8402]
    assert str(PortRange.parse(" 8400 ")) == "8400-8400"


@pytest.mark.parametrize(
    "text",
    ["80-90", "8499-8400", "8400-", "-1", "8400-8500-8600", "8400,8401", "65536", "٨٤٠٠", "8400\n-8401x"],
)
def test_an_invalid_range_is_reported_with_one_line(text):
    with pytest.raises(GipfelError) as caught:
        PortRange.parse(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_range_or_a_gipfel_error(text):
    try:
        ports = PortRange.parse(text)
    except GipfelError:
        return
    assert ports is None or 1024 <= ports.first <= ports.last <= 65535


def test_concurrent_servers_get_different_ports_until_none_is_free():
    first = free_run(8)
    ports = PortRange(first=first, last=first + 7)
    held: list[socket.socket] = []
    threads = [threading.Thread(target=lambda: held.append(bind_port("0.0.0.0", ports))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    try:
        assert sorted(each.getsockname()[1] for each in held) == list(range(first, first + 8))
        with pytest.raises(GipfelError, match=rf"All ports {first}-{first + 7} of .* are in use"):
            bind_port("0.0.0.0", ports)
    finally:
        for each in held:
            each.close()


def test_a_port_in_use_on_one_address_is_skipped():
    first = free_run(2)
    with socket.create_server(("127.0.0.1", first)):
        held = bind_port("::", PortRange(first=first, last=first + 1))
        assert held.getsockname()[1] == first + 1
        held.close()


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::"])
def test_all_addresses_means_both_families_on_one_port(address):
    held = bind_port(address, None)
    port = held.getsockname()[1]
    try:
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            socket.create_connection((host, port), 2).close()
    finally:
        held.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_one_address_means_that_one_only(address):
    held = bind_port(address, None)
    port = held.getsockname()[1]
    other = {"127.0.0.1": "::1", "::1": "127.0.0.1"}[address]
    try:
        socket.create_connection((address, port), 2).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), 2)
    finally:
        held.close()


def test_a_port_of_a_server_that_has_just_ended_can_be_taken_again():
    first = free_run(1)
    ports = PortRange(first=first, last=first)
    held = bind_port("127.0.0.1", ports)
    client = socket.create_connection(("127.0.0.1", first), 2)
    held.settimeout(2)
    accepted, _ = held.accept()
    accepted.close()
    client.close()
    held.close()
    bind_port("127.0.0.1", ports).close()


def test_a_foreign_address_is_reported_with_one_line():
    with pytest.raises(GipfelError, match=r"No port can be bound on 192\.0\.2\.1: "):
        bind_port("192.0.2.1", None)


def test_free_ports_are_outside_of_the_ephemeral_range():
    given_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports("127.0.0.1", 3)
    assert len(set(ports)) == 3
    assert all(10000 <= port < given_out for port in ports) or given_out <= 12000
    for port in ports:
        bind_port("127.0.0.1", PortRange(first=port, last=port)).close()


def test_another_program_on_the_hubs_port_is_not_mistaken_for_the_hub(tmp_path):
    class Everything(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.path.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Everything) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        hub = HubProcess(tmp_path, {"GIPFEL_SCHEDULER": "local"}, proxy=tmp_path)
        hub.port = other.server_address[1]
        hub.url = f"http://127.0.0.1:{hub.port}"
        hub._environment["GIPFEL_PORT"] = str(hub.port)
        try:
            with pytest.raises(GipfelError, match=f"Port {hub.port} is in use"), hub:
                pass
        finally:
            hub.close()
            other.shutdown()
