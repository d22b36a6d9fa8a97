"""Staging on two nodes that mount a shared directory each by itself: bytes, lost nodes, full disks, kills."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import sftp_share
from edf_files import write_edf
from images import Images
from one_machine import OneMachine, wait_until
from s3_stand_in import s3_stand_in
from sftp_share import SftpShare
from staging_place import LIMIT_S, Place
from unix_users import UnixUser

from gipfel_cluster.model import GipfelError
from gipfel_extension.data.stage.exchange import Exchange, ExchangeError, FileCopy, Peer
from gipfel_extension.data.stage.model import StageSpec, list_items
from gipfel_extension.data.stage.wire import CHUNK_BYTES

pytestmark = pytest.mark.cluster

_BYTES = 32 << 20
_SMALL = 16 << 20
#: Bytes per second of each node's link.
_LINK = 60e6


@pytest.fixture(scope="module")
def place(
    cluster: OneMachine,
    runtime: Path,
    plain_users: tuple[UnixUser, UnixUser],
    shared_folder: Path,
    fuse: None,
) -> Iterator[Place]:
    if reason := sftp_share.missing():
        pytest.skip(reason)
    source = shared_folder / "served"
    source.mkdir(mode=0o755)
    (source / "data.bin").write_bytes(os.urandom(_BYTES))
    (source / "data.bin").chmod(0o644)
    disk = shared_folder / "disk"
    disk.mkdir(mode=0o1777)
    disk.chmod(0o1777)
    with SftpShare(cluster, source, shared_folder / "shared", link=_LINK).mounted() as share:
        place = Place(plain_users[0], cluster, share, runtime)
        # A disk for each node, of which the second one's is too small.
        for node, size in zip(cluster.node_names, (_BYTES * 4, _SMALL), strict=True):
            place.on(node, "mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", str(disk))
        place.begin()
        try:
            yield place
        finally:
            with contextlib.suppress(GipfelError):
                # A test has killed it.
                cluster.call(["scancel", "--signal=KILL", place.job])
            for node in cluster.node_names:
                place.on(node, "umount", str(disk))


def test_the_shared_file_system_sends_the_data_once_and_a_copy_is_used_again(place: Place) -> None:
    status, _, err = place.end(place.start(f"srun --nodes=2 --overlap cat {place.data} | wc -c"))
    assert status == 0, err
    assert place.share.total() >= 2 * _BYTES
    place.share.reset()
    status, found, err = place.stage("--to", "memory")
    assert status == 0, err
    assert place.share.total() <= 1.1 * _BYTES, dict(place.share.sent)
    assert found["shared_reads"] == _BYTES
    assert [(each["node"], each["phase"], each["done"]) for each in found["copies"]] == [
        (name, "staged", _BYTES) for name in place.cluster.node_names
    ]
    assert all(each["read"] and each["received"] for each in found["copies"])
    status, second, err = place.stage("--to", "memory")
    assert status == 0, err
    assert [each["reused"] for each in second["copies"]] == [_BYTES, _BYTES]
    assert second["shared_reads"] == 0
    place.stop(found["id"])
    # The second staging still needs the copies.
    assert not place.nothing_left()
    place.stop(second["id"])
    assert wait_until(place.nothing_left, 10), place.left()


def test_an_object_of_s3_is_read_once_for_all_nodes(place: Place) -> None:
    with s3_stand_in(place.cluster.hub_address) as service:
        service.objects = {"data.bin": os.urandom(_SMALL)}
        keys = " ".join(f"{name}={value}" for name, value in service.environment.items())
        command = f"{keys} {place.runtime}/bin/gipfel data stage s3://sets/data.bin --to memory --json"
        status, out, err = place.end(place.start(command))
        assert status == 0, err
        assert service.sent == _SMALL
        content = service.objects["data.bin"]
    found = json.loads(out)
    assert all(each["read"] and each["received"] for each in found["copies"])
    for node in place.cluster.node_names:
        copy = place.on(node, "sh", "-c", "sha256sum /dev/shm/gipfel-staged-*/*/data").split()[0]
        assert copy == hashlib.sha256(content).hexdigest()
    place.stop(found["id"])
    assert wait_until(place.nothing_left, 10), place.left()


def test_ranks_in_containers_read_the_copies_at_the_same_path(place: Place, images: Images) -> None:
    user, at = place.user, place.share.at
    program = "import hashlib, sys; print('READ', hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())"
    user.write("read.py", program)
    edf = write_edf(user, "staged", image=images.python, mounts=(f"{at}:{at}", f"{user.home}:{user.home}"))
    with edf.open("a") as file:
        file.write(f'[annotations.com.gipfel.stage]\ndata = "{place.data}"\nto = "memory"\n')
    place.share.reset()
    words = "--launcher srun --nodes 2 --no-preflight --in-job --wait --edf staged"
    command = f"{place.runtime}/bin/gipfel launch {words} -- read.py {place.data}"
    status, out, err = place.end(place.start(command))
    assert status == 0, err + out
    digest = hashlib.sha256((place.share.source / "data.bin").read_bytes()).hexdigest()
    assert (out + err).count(f"READ {digest}") == 2
    assert place.share.total() <= 1.1 * _BYTES, dict(place.share.sent)
    # They stay for the job's next launch.
    assert not place.nothing_left()
    for folder in (user.home / ".gipfel/runs/transfers").iterdir():
        place.stop(folder.name)
    assert wait_until(place.nothing_left, 15), place.left()


def test_launches_and_batch_notebooks_stage_what_they_are_given(place: Place, images: Images) -> None:
    user, at = place.user, place.share.at
    digest = hashlib.sha256((place.share.source / "data.bin").read_bytes()).hexdigest()
    program = "import hashlib, sys; print('READ', hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())"
    user.write("read.py", program)
    write_edf(user, "plain", image=images.python, mounts=(f"{at}:{at}", f"{user.home}:{user.home}"))
    place.share.reset()
    words = f"--nodes 2 --no-preflight --in-job --wait --edf plain --stage {place.data} --stage-to memory"
    command = f"{place.runtime}/bin/gipfel launch --launcher srun {words} -- read.py {place.data}"
    status, out, err = place.end(place.start(command))
    assert status == 0, err + out
    assert (out + err).count(f"READ {digest}") == 2
    assert place.share.total() <= 1.1 * _BYTES, dict(place.share.sent)
    for folder in (user.home / ".gipfel/runs/transfers").iterdir():
        place.stop(folder.name)
    assert wait_until(place.nothing_left, 15), place.left()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    source = (
        f"import hashlib; print('READ', hashlib.sha256(open({str(place.data)!r}, 'rb').read()).hexdigest())"
    )
    notebook.cells = [nbformat.v4.new_code_cell(source)]
    user.write("read.ipynb", nbformat.writes(notebook))
    place.share.reset()
    words = f"read.ipynb done.ipynb --nodes 2 --wait --edf plain --stage {place.data} --stage-to memory"
    status, out, err = place.end(place.start(f"{place.runtime}/bin/gipfel submit {words}"), 4 * LIMIT_S)
    assert status == 0, err + out
    assert digest in (user.home / "done.ipynb").read_text()
    assert "staged on 2 of 2 nodes (memory)" in out + err + "".join(
        each.read_text() for each in (user.home / ".gipfel/runs").rglob("stage.log")
    )
    assert place.share.total() <= 1.1 * _BYTES, dict(place.share.sent)
    # They end with their own job.
    assert wait_until(place.nothing_left, 20), place.left()


def test_a_disk_that_is_too_small_is_named_and_the_others_copies_are_removed(place: Place) -> None:
    node = place.cluster.node_names[1]
    status, found, _ = place.stage("--to", "nvme")
    assert (status, found["outcome"]) == (1, "failed")
    assert f"{node} could not be staged: The data does not fit: " in found["reason"]
    assert "32.0 MiB are needed" in found["reason"]
    assert wait_until(place.nothing_left, 10), place.left()


def test_a_disk_that_fills_in_the_middle_does_not_take_the_reserved_space(place: Place) -> None:
    node = place.cluster.node_names[0]
    disk = place.user.home.parent / "disk"
    place.share.reset()
    place.share.rate = _BYTES / 2
    try:
        number = place.start(
            f"{place.runtime}/bin/gipfel data stage {place.data} --to nvme --nodes {node} --json"
        )
        assert wait_until(lambda: place.share.sent[node] > 2 << 20, 30)
        filled = place.on(node, "sh", "-c", f"dd if=/dev/zero of={disk}/other bs=1M 2>&1; df {disk}")
        assert "No space left" in filled
        assert "100%" in filled
        assert place.share.sent[node] < _BYTES
        status, out, err = place.end(number)
    finally:
        place.share.rate = None
        place.on(node, "rm", "-f", f"{disk}/other")
    assert status == 0, err
    found = json.loads(out)
    assert found["copies"][0]["done"] == _BYTES
    copy = place.on(node, "sh", "-c", f"sha256sum {disk}/gipfel-staged-*/*/data").split()[0]
    assert copy == hashlib.sha256((place.share.source / "data.bin").read_bytes()).hexdigest()
    place.stop(found["id"])
    assert wait_until(place.nothing_left, 10), place.left()


def test_a_disk_that_is_full_before_the_last_chunk_ends_the_copy_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "source.bin").write_bytes(os.urandom(3 * CHUNK_BYTES))
    (item,) = list_items(StageSpec(data=(str(tmp_path / "source.bin"),)))
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={2 * CHUNK_BYTES}", "tmpfs", disk], check=True)
    try:
        # Without reserved space, as on a file system that can't reserve any.
        with (disk / "part").open("w+b", buffering=0) as file:
            copy = FileCopy(item, file, complete=False)
            exchange = Exchange([copy], b"k" * 32, rank=0, patience_s=1, notify=lambda *_: None)
            with pytest.raises(ExchangeError, match="No space left on device"):
                exchange.fill({0: Peer(("127.0.0.1", exchange.port), frozenset())})
            exchange.close()
            assert copy.root_hash == ""
    finally:
        subprocess.run(["umount", disk], check=True)


def test_the_jobs_memory_limit_is_kept_and_named(place: Place) -> None:
    node = place.cluster.node_names[1]
    with (place.share.source / "large.bin").open("wb") as file:
        # Not read: it must be refused before.
        file.truncate(400 << 20)
    with place.limited_memory(node, 512 << 20):
        large = place.share.at / "large.bin"
        command = f"{place.runtime}/bin/gipfel data stage {large} --to memory --json"
        status, out, _ = place.end(place.start(command))
        assert status == 1
        reason = json.loads(out)["reason"]
        assert f"{node} could not be staged: The data does not fit: memory has " in reason
        status, found, err = place.stage("--to", "memory")
        assert status == 0, err
        place.stop(found["id"])
        assert wait_until(place.nothing_left, 10), place.left()


def _stage_and_signal(place: Place, node: str, number: signal.Signals, options: str) -> tuple[int, str, str]:
    """Send a signal to a node's agent in the middle of a slow staging; return how the command ended."""
    place.share.reset()
    place.share.rate = _BYTES / 3
    try:
        job = place.start(f"{place.runtime}/bin/gipfel data stage {place.data} --to memory --json {options}")
        assert wait_until(lambda: place.share.sent[node] > 2 << 20, 30)
        place.signal_agent(node, number)
        return place.end(job)
    finally:
        place.share.rate = None


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_node_that_stands_still_is_named_and_others_go_on_or_stop(place: Place, on_failure: str) -> None:
    node = place.cluster.node_names[1]
    status, out, _ = _stage_and_signal(
        place, node, signal.SIGSTOP, f"--stall-limit 12s --on-failure {on_failure}"
    )
    found = json.loads(out)
    assert status == (on_failure == "stop"), found["reason"]
    assert [each["node"] for each in found["copies"] if each["phase"] == "failed"] == [node]
    assert "made no progress for 12 s" in found["copies"][1]["problem"]
    assert f"{node}" in found["reason"]
    if on_failure == "continue":
        assert (found["copies"][0]["phase"], found["copies"][0]["done"]) == ("staged", _BYTES)
        place.stop(found["id"])
    # Slurm kills the stopped process, and its epilog.
    assert wait_until(place.nothing_left, 40), place.left()


def test_a_node_killed_in_the_middle_is_named_and_nothing_is_left_after_a_kill(place: Place) -> None:
    node = place.cluster.node_names[1]
    status, out, err = _stage_and_signal(place, node, signal.SIGKILL, "--on-failure continue")
    assert status == 0, err
    found = json.loads(out)
    assert [each["phase"] for each in found["copies"]] == ["staged", "failed"]
    assert "killed, or its node is lost" in found["copies"][1]["problem"]
    assert found["copies"][0]["done"] == _BYTES
    # The killed node's part is removed by its epilog, and the other's by that of the killed job.
    assert wait_until(lambda: "gipfel-staged" not in place.on(node, "ls", "/dev/shm"), 10)
    assert not place.nothing_left()
    began = time.monotonic()
    place.cluster.call(["scancel", "--signal=KILL", place.job], user=place.user.name)
    assert wait_until(place.nothing_left, 15), place.left()
    assert time.monotonic() - began < 15
    assert wait_until(lambda: not place.user.processes(), 20)
