"""The fan-in over real sockets: each node's samples arrive once, and other senders are ignored."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zmq

from gipfel_extension.telemetry.live import LiveReader, Tick
from gipfel_extension.telemetry.live.fan_in import FanInKeys, FanInReceiver, FanInSender
from gipfel_extension.telemetry.sample import Device, Provenance, Sample, SourceError

LIMIT_S = 60.0


def tick(seq: int, node: str = "nid001") -> Tick:
    gpu = Device(f"GPU-{node}", "gpu", "NVIDIA GH200 120GB", 0, node=node)
    sample = Sample(seq * 10**9, seq, gpu.uuid, {"SM_ACTIVE": 0.5, "FB_USED": None})
    return Tick(seq, Provenance(node, "job", "nvml", interval=1.0, devices=(gpu,)), (sample,))


@contextmanager
def receiving(sockets: Path, keys: FanInKeys, port: int = 0) -> Iterator[FanInReceiver]:
    receiver = FanInReceiver(sockets, keys, address="127.0.0.1", port=port)
    ended = threading.Event()
    thread = threading.Thread(target=receiver.run, args=(ended,))
    thread.start()
    try:
        yield receiver
    finally:
        ended.set()
        thread.join(LIMIT_S)
        receiver.close()


def gathered(reader: LiveReader, enough: Callable[[list[Tick]], bool]) -> list[Tick]:
    found: list[Tick] = []
    ends = time.monotonic() + LIMIT_S
    while not enough(found) and time.monotonic() < ends:
        came = reader.receive(0.2)
        found += [] if came is None else [came]
    return found


def until(senders: list[FanInSender], what: Callable[[], bool]) -> bool:
    """Let senders work, as their recorders do by each tick, until something is so."""
    ends = time.monotonic() + LIMIT_S
    while not what() and time.monotonic() < ends:
        for sender in senders:
            sender._exchange()
        time.sleep(0.02)
    return what()


def connected(reader: LiveReader, sender: FanInSender) -> None:
    """Wait until a tick has arrived: a new subscriber misses earlier ones."""
    number = 10**6
    ends = time.monotonic() + LIMIT_S
    while time.monotonic() < ends:
        number += 1
        sender.send(tick(number, "probe"))
        if reader.receive(0.1) is not None:
            break
    assert until([sender], lambda: sender.waiting == 0)
    while reader.receive(0.3) is not None:
        pass


@pytest.fixture
def sockets(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("s")


def test_256_nodes_arrive_once_each_with_their_name(sockets):
    keys = FanInKeys.make()
    with receiving(sockets, keys) as receiver, closing(LiveReader(sockets)) as reader:
        endpoint = f"tcp://127.0.0.1:{receiver.port}"
        senders = [FanInSender(endpoint, keys) for _ in range(256)]
        try:
            connected(reader, senders[0])
            for seq in (1, 2):
                for number, sender in enumerate(senders):
                    sender.send(tick(seq, f"nid{number:03}"))
            worker = threading.Thread(
                target=until, args=(senders, lambda: not any(s.waiting for s in senders))
            )
            worker.start()
            found = gathered(reader, lambda ticks: len(ticks) >= 512)
            worker.join(LIMIT_S)
        finally:
            for sender in senders:
                sender.close(limit=0)
        assert sorted((t.origin.node, t.seq) for t in found) == sorted(
            (f"nid{n:03}", seq) for n in range(256) for seq in (1, 2)
        )
        assert found[0].samples[0].values == {"SM_ACTIVE": 0.5, "FB_USED": None}
        assert not any(sender.dropped for sender in senders)


def test_restarted_head_receives_missed_ticks_without_duplicates(sockets):
    keys = FanInKeys.make()
    with closing(LiveReader(sockets)) as reader:
        with receiving(sockets, keys) as receiver:
            port = receiver.port
            sender = FanInSender(f"tcp://127.0.0.1:{port}", keys)
            connected(reader, sender)
            sender.send(tick(1))
            assert [t.seq for t in gathered(reader, bool)] == [1]
            assert until([sender], lambda: sender.waiting == 0)
        for seq in (2, 3, 4):
            sender.send(tick(seq))
        with receiving(sockets, keys, port):
            worker = threading.Thread(target=until, args=([sender], lambda: sender.waiting == 0))
            worker.start()
            # The reader finds the new head by itself; what came before it did is in the segments.
            worker.join(LIMIT_S)
            assert sender.waiting == 0
            connected(reader, sender)
            sender.send(tick(5))
            assert [t.seq for t in gathered(reader, bool)] == [5]
        sender.close(limit=0)


def test_a_tick_that_comes_twice_is_published_once(sockets):
    keys = FanInKeys.make()
    clock = [0.0]
    with receiving(sockets, keys) as receiver, closing(LiveReader(sockets)) as reader:
        sender = FanInSender(f"tcp://127.0.0.1:{receiver.port}", keys, monotonic=lambda: clock[0])
        connected(reader, sender)
        # The acknowledgement is not looked at until the tick was sent again.
        acknowledged, sender._receive_acknowledgements = sender._receive_acknowledgements, lambda: None
        sender.send(tick(1))
        clock[0] += 10.0
        sender._exchange()
        sender._receive_acknowledgements = acknowledged
        assert until([sender], lambda: sender.waiting == 0)
        assert [t.seq for t in gathered(reader, bool)] == [1]
        assert reader.receive(0.3) is None
        sender.close(limit=0)


def test_without_a_head_the_oldest_are_dropped_and_counted(sockets):
    keys = FanInKeys.make()
    with receiving(sockets, keys) as receiver:
        port = receiver.port
    sender = FanInSender(f"tcp://127.0.0.1:{port}", keys, capacity=10)
    for seq in range(1, 26):
        sender.send(tick(seq))
    assert (sender.waiting, sender.dropped) == (10, 15)
    with receiving(sockets, keys, port), closing(LiveReader(sockets)) as reader:
        worker = threading.Thread(target=until, args=([sender], lambda: sender.waiting == 0))
        found = gathered_from(reader, worker)
    sender.close(limit=0)
    assert [t.seq for t in found] == list(range(16, 26))[-len(found) :]
    assert found[-1].dropped == 15


def gathered_from(reader: LiveReader, worker: threading.Thread) -> list[Tick]:
    reader.receive(0.1)
    worker.start()
    found = gathered(reader, lambda ticks: bool(ticks) and ticks[-1].seq == 25)
    worker.join(LIMIT_S)
    return found


def other_keys(keys: FanInKeys, case: str) -> FanInKeys | None:
    other = FanInKeys.make()
    if case == "wrong server key":
        return FanInKeys(other.server, keys.client, keys.client_secret)
    if case == "wrong client key":
        return FanInKeys(keys.server, other.client, other.client_secret)
    return None


@pytest.mark.parametrize("case", ["wrong server key", "wrong client key", "no key", "plain"])
def test_clients_without_the_jobs_keys_are_refused(sockets, case):
    keys = FanInKeys.make()
    with receiving(sockets, keys) as receiver, closing(LiveReader(sockets)) as reader:
        endpoint = f"tcp://127.0.0.1:{receiver.port}"
        friend = FanInSender(endpoint, keys)
        connected(reader, friend)
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            wrong = other_keys(keys, case)
            if wrong is not None:
                stranger.curve_serverkey = wrong.server.encode()
                stranger.curve_publickey = wrong.client.encode()
                stranger.curve_secretkey = wrong.client_secret.encode()
            elif case == "plain":
                stranger.plain_username, stranger.plain_password = b"gipfel", b"gipfel"
            events = (
                zmq.EVENT_HANDSHAKE_FAILED_AUTH
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                | zmq.EVENT_HANDSHAKE_SUCCEEDED
                | zmq.EVENT_DISCONNECTED
            )
            monitor = stranger.get_monitor_socket(events)
            stranger.connect(endpoint)
            stranger.send_multipart([b"strange!", (1).to_bytes(8), tick(1, "stranger").encode()])
            assert monitor.poll(int(1000 * LIMIT_S))
            event = int.from_bytes(monitor.recv_multipart()[0][:2], sys.byteorder)
            assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
            stranger.disable_monitor()
        # The job's own still are heard, and nothing of the stranger's was.
        friend.send(tick(7))
        assert [(t.origin.node, t.seq) for t in gathered(reader, bool)] == [("nid001", 7)]
        assert reader.receive(0.3) is None
        friend.close(limit=0)


def test_receiver_prints_port_and_keys_and_ends_at_a_signal(sockets):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIPFEL_FAN_IN")}
    argv = [sys.executable, "-m", "gipfel_extension.telemetry.live.fan_in", "--address", "127.0.0.1"]
    argv += ["--sockets", str(sockets)]

    def started(environment: dict[str, str], *more: str) -> tuple[subprocess.Popen[bytes], dict]:
        process = subprocess.Popen([*argv, *more], stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    first, said = started(environment)
    port = said["port"]
    sender_keys = FanInKeys.from_environment(said["environment"])
    assert sender_keys is not None
    assert sender_keys.server_secret == ""
    assert os.stat(sockets / "fan-in.sock").st_mode & 0o777 == 0o600
    # A successor takes up port and keys, and says no secret.
    first.kill()
    first.wait(LIMIT_S)
    second, said = started({**environment, **said["head"]}, "--port", str(port))
    assert said == {"port": port}
    with closing(LiveReader(sockets)) as reader:
        sender = FanInSender(f"tcp://127.0.0.1:{port}", sender_keys)
        connected(reader, sender)
        sender.close(limit=0)
    second.terminate()
    assert second.wait(LIMIT_S) == 0
    for process in (first, second):
        process.stdout.close()


def test_invalid_key_or_endpoint_raises_source_error():
    keys = FanInKeys.make()
    assert FanInKeys.from_environment({}) is None
    assert FanInKeys.from_environment(keys.to_environment()) is not None
    assert keys.server_secret not in str(keys)
    with pytest.raises(SourceError, match="not valid CURVE keys"):
        FanInKeys.from_environment(dict.fromkeys(keys.to_environment(), "x"))
    with pytest.raises(SourceError, match="tcp://HOST:PORT"):
        FanInSender("nonsense", keys)
