"""Exchange of chunks among the nodes of a staging, and its authenticated messages."""

import hashlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from data_trees import stage_item

from gipfel_extension.data.stage.exchange import Exchange, ExchangeError, FileCopy, Peer
from gipfel_extension.data.stage.model import StageItem
from gipfel_extension.data.stage.wire import CHUNK_BYTES, Channel, WireError

_KEY = b"k" * 32


class _Node:
    """A node of an exchange in this process."""

    def __init__(self, folder: Path, item: StageItem, rank: int, *, complete: bool = False) -> None:
        self.path = folder / f"copy-{rank}"
        self.path.write_bytes(Path(item.path).read_bytes() if complete else b"")
        self.file = self.path.open("r+b", buffering=0)
        self.copy = FileCopy(item, self.file, complete=complete)
        self.doubts: list[tuple[int, str]] = []
        self.exchange = Exchange(
            [self.copy], _KEY, rank=rank, patience_s=1.0, notify=lambda *each: self.doubts.append(each)
        )

    def peer(self) -> Peer:
        return Peer(("127.0.0.1", self.exchange.port), frozenset({0} if self.copy.complete else ()))

    def close(self) -> None:
        self.exchange.close()
        self.file.close()


def _fill(nodes: list[_Node], peers: dict[int, Peer]) -> None:
    with ThreadPoolExecutor(len(nodes)) as pool:
        for each in [pool.submit(node.exchange.fill, peers) for node in nodes]:
            each.result(30)


def test_nodes_read_the_data_once_together_and_all_get_it(tmp_path: Path) -> None:
    item = stage_item(tmp_path)
    nodes = [_Node(tmp_path, item, rank) for rank in range(3)]
    _fill(nodes, {rank: each.peer() for rank, each in enumerate(nodes)})
    assert {each.path.read_bytes() for each in nodes} == {Path(item.path).read_bytes()}
    assert sum(each.exchange.read for each in nodes) == item.size
    assert all(0 < each.exchange.read < item.size / 2 for each in nodes)
    assert len({each.copy.root_hash for each in nodes}) == 1
    for each in nodes:
        each.close()


def test_a_node_that_has_the_data_gives_it_and_nothing_is_read(tmp_path: Path) -> None:
    item = stage_item(tmp_path)
    nodes = [_Node(tmp_path, item, 0, complete=True), _Node(tmp_path, item, 1), _Node(tmp_path, item, 2)]
    _fill(nodes, {rank: each.peer() for rank, each in enumerate(nodes)})
    assert nodes[2].path.read_bytes() == Path(item.path).read_bytes()
    assert [each.exchange.read for each in nodes] == [0, 0, 0]
    for each in nodes:
        each.close()


def test_a_lost_node_is_named_and_the_others_read_its_share(tmp_path: Path) -> None:
    item = stage_item(tmp_path)
    nodes = [_Node(tmp_path, item, rank) for rank in range(3)]
    peers = {rank: each.peer() for rank, each in enumerate(nodes)}
    nodes[2].close()
    peers[2] = Peer(("127.0.0.1", 1), frozenset())
    _fill(nodes[:2], peers)
    assert {each.path.read_bytes() for each in nodes[:2]} == {Path(item.path).read_bytes()}
    assert {rank for each in nodes[:2] for rank, _ in each.doubts} == {2}
    assert "is lost" in nodes[0].doubts[0][1]
    for each in nodes[:2]:
        each.close()


def test_a_node_that_delivers_nothing_is_left_out_after_a_while(tmp_path: Path) -> None:
    item = stage_item(tmp_path, 2)
    nodes = [_Node(tmp_path, item, rank) for rank in range(2)]
    # The second one answers, but never reads.
    nodes[0].exchange.fill({rank: each.peer() for rank, each in enumerate(nodes)})
    assert nodes[0].path.read_bytes() == Path(item.path).read_bytes()
    assert nodes[0].doubts == [(1, "does not have its chunks yet")]
    for each in nodes:
        each.close()


def test_data_that_differs_from_its_summary_is_refused(tmp_path: Path) -> None:
    item = stage_item(tmp_path, 2)
    wrong = item.model_copy(update={"chunks": ("0" * 64, "1" * 64)})
    node = _Node(tmp_path, wrong, 0)
    with pytest.raises(ExchangeError, match="damaged: chunk"):
        node.exchange.fill({0: node.peer()})
    node.close()


def _pair(first: bytes, second: bytes) -> tuple[Channel, Channel]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(Channel, one, first, accepted=True, timeout_s=5.0)
        connected = Channel(other, second, accepted=False, timeout_s=5.0)
        return accepted.result(5), connected


def test_who_does_not_know_the_key_gets_nothing() -> None:
    one, other = socket.socketpair()
    refused: list[BaseException] = []

    def accept() -> None:
        try:
            Channel(one, _KEY, accepted=True, timeout_s=5.0)
        except OSError as error:
            refused.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    with pytest.raises(WireError):
        Channel(other, b"x" * 32, accepted=False, timeout_s=5.0)
    thread.join()
    assert isinstance(refused[0], WireError)


def test_changed_repeated_and_long_messages_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"1234")
    for change in ("object", "data", "repeat", "length"):
        server, client = _pair(_KEY, _KEY)
        middle, end = socket.socketpair()
        real, client.socket = client.socket, middle
        with (tmp_path / "data").open("rb") as file:
            client.send({"sha256": hashlib.sha256(b"1234").hexdigest()}, file, 0, 4)
        sent = bytearray(end.recv(1 << 16))
        if change == "object":
            sent[12] ^= 1
        elif change == "data":
            sent[-1] ^= 1
        elif change == "length":
            sent[4:8] = (CHUNK_BYTES + 1).to_bytes(4, "big")
        else:
            real.sendall(sent)
            assert bytes(server.receive()[1]) == b"1234"
        real.sendall(sent)
        with pytest.raises(WireError):
            server.receive()
        for each in (real, middle, end, server.socket):
            each.close()
