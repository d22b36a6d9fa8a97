"""Staging: copies on a node, containers and jobs that use them, objects of S3, and the commands."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from data_trees import stage_item
from s3_stand_in import KEY as S3_KEY
from s3_stand_in import SECRET, S3StandIn, s3_stand_in

from gipfel_cluster.edf.model import Edf, Mount
from gipfel_cluster.engines.protocol import ContainerRequest
from gipfel_cluster.hooks.invocation import use_copies
from gipfel_cluster.job.staging import StageRequest, stage_before_start, stage_request
from gipfel_cluster.model import GipfelError
from gipfel_cluster.staged import StagedPath, available_memory, lock_content, staged_paths, sweep
from gipfel_cluster.storage_classes import node_stores
from gipfel_extension.cli.data_stage import progress_lines
from gipfel_extension.cli.runs import size_text
from gipfel_extension.data.manifest import summary_path
from gipfel_extension.data.s3 import S3Error, S3Service
from gipfel_extension.data.stage.agent import NodeStore
from gipfel_extension.data.stage.model import NodeCopy, StageSpec, TransferState, list_items
from gipfel_extension.data.stage.wire import CHUNK_BYTES


def test_the_progress_table_has_the_total_and_the_slowest_node_first() -> None:
    copies = (
        NodeCopy(node="nid1", phase="staged", tier="nvme", done=2_000_000, read=2_000_000),
        NodeCopy(node="nid2", phase="copying", tier="memory", done=500_000, received=500_000),
    )
    state = TransferState(phase="running", name="set", total=2_000_000, copies=copies)
    total, first, second = (each.split() for each in progress_lines(state))
    assert total[:2] == ["all", "nodes"]
    assert total[3:5] == ["62", "%"]
    assert " ".join(total[5:]) == f"{size_text(2_500_000)} of {size_text(4_000_000)}"
    assert (first[0], first[2:]) == ("nid2", ["25", "%", "memory", "copying"])
    assert (second[0], second[2:]) == ("nid1", ["100", "%", "nvme", "staged"])
    assert first[1].count("█") == 6
    lost = copies[1].model_copy(update={"phase": "failed", "problem": "nid2 is silent."})
    total, first, _ = progress_lines(state.model_copy(update={"copies": (copies[0], lost)}))
    # A failed node no longer counts in the total.
    assert "100 %" in total
    assert first.endswith("nid2 is silent.")


def _staged_on_disk(environment: Mapping[str, str]) -> Iterator[tuple[str, StagedPath]]:
    """Yield what is staged on this node's disk: its memory is shared with the tests that run beside these."""
    return staged_paths({"nvme": node_stores(environment)["nvme"]})


def test_copies_are_kept_while_a_process_needs_them_and_shared(tmp_path: Path) -> None:
    item = stage_item(tmp_path, 1.5)
    environment = {"GIPFEL_STORAGE_FAST": str(tmp_path)}
    spec = StageSpec(data=(item.path,), to="nvme")
    first = NodeStore(spec, [item], environment)
    (copy,) = first.open()
    assert not copy.complete
    # Another job waits until the copy is complete.
    with ThreadPoolExecutor(1) as pool:
        second = NodeStore(spec, [item], environment)
        waiting = pool.submit(second.open)
        copy.file.write(Path(item.path).read_bytes())
        incomplete, waited = list(_staged_on_disk(environment)), not waiting.done()
        # Before anything is asserted: the pool's end waits for the other job.
        first.finish(copy)
        (other,) = waiting.result(5)
    assert incomplete == []
    assert waited
    assert other.complete
    ((tier, staged),) = _staged_on_disk(environment)
    assert (tier, staged.path, staged.is_current()) == ("nvme", item.path, True)
    first.release()
    assert sweep(first.path) == 0
    assert Path(staged.copy).read_bytes() == Path(item.path).read_bytes()
    second.release()
    assert not first.path.exists()


def test_what_a_killed_process_left_is_removed_and_a_shared_directory_is_refused(tmp_path: Path) -> None:
    environment = {"GIPFEL_STORAGE_FAST": str(tmp_path)}
    store = node_stores(environment)["nvme"]
    (store / "left").mkdir(parents=True)
    store.chmod(0o700)
    (store / "left" / "part").write_bytes(b"x" * 5000)
    (store / "used").mkdir()
    lock = lock_content(store / "used", exclusive=False)
    assert lock is not None
    assert sweep(store) >= 5000
    assert sorted(each.name for each in store.iterdir()) == ["used"]
    os.close(lock)
    store.chmod(0o777)
    sweep(store)
    assert (store / "used").exists()
    item = stage_item(tmp_path, 0.1)
    with pytest.raises(PermissionError, match="this user alone"):
        NodeStore(StageSpec(data=(item.path,), to="nvme"), [item], environment)


def test_limits_are_kept_and_named(tmp_path: Path) -> None:
    item = stage_item(tmp_path, 1.5)
    spec = StageSpec(data=(item.path,), max_memory=1 << 20, max_disk=2 << 20)
    with pytest.raises(GipfelError, match=r"6\.0 MiB are needed; memory has 1\.0 MiB"):
        NodeStore(spec, [item], {"GIPFEL_STORAGE_FAST": str(tmp_path)})
    assert not node_stores({"GIPFEL_STORAGE_FAST": str(tmp_path)})["nvme"].exists()


def test_memory_is_what_the_control_groups_of_a_job_allow(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    job = tmp_path / "memory" / "slurm" / "job_7"
    (job / "step_0").mkdir(parents=True)
    (job / "memory.limit_in_bytes").write_text("3000000\n")
    (job / "memory.usage_in_bytes").write_text("1500000\n")
    (job / "memory.stat").write_text("cache 0\ntotal_cache 900000\ntotal_shmem 400000\n")
    own.write_text("4:cpu,memory:/slurm/job_7/step_0\n0::/\n")
    assert available_memory(own, tmp_path) == 2_000_000
    (job / "memory.usage_in_bytes").write_text("9000000\n")
    assert available_memory(own, tmp_path) == 0
    group = tmp_path / "job_8"
    group.mkdir()
    for name, text in (("max", "max"), ("current", "400000"), ("stat", "file 150000\nshmem 50000\n")):
        (group / f"memory.{name}").write_text(text)
    own.write_text("0::/job_8\n")
    assert available_memory(own, tmp_path) > 3_000_000
    (group / "memory.max").write_text("1000000\n")
    assert available_memory(own, tmp_path) == 700_000


def test_containers_get_the_copies_at_the_same_paths(tmp_path: Path) -> None:
    item = stage_item(tmp_path, 0.1)
    environment = {"GIPFEL_STORAGE_FAST": str(tmp_path)}
    store = NodeStore(StageSpec(data=(item.path,), to="nvme"), [item], environment)
    (copy,) = store.open()
    copy.file.write(Path(item.path).read_bytes())
    store.finish(copy)
    mounts = (
        Mount(source=item.path, destination="/data", flags=("sqsh",)),
        Mount(source=str(tmp_path), destination="/shared"),
        Mount(source="/usr", destination="/usr2"),
    )
    edf = Edf(name="e", path=None, image=item.path, mounts=mounts)
    request = ContainerRequest(edf=edf, command=("true",), scratch="/s")
    changed, notes = use_copies(request, _staged_on_disk(environment))
    staged = str(store.path / item.key / "data")
    assert changed.edf.image == staged
    assert changed.edf.mounts == (
        Mount(source=staged, destination="/data", flags=("sqsh", "ro")),
        mounts[1],
        Mount(source=staged, destination="/shared/source.bin", flags=("ro",)),
        mounts[2],
    )
    assert notes == ("1 staged file of this node used instead of the shared ones.",)
    Path(item.path).write_bytes(b"changed")
    assert use_copies(request, _staged_on_disk(environment)) == (request, ())
    store.release()


def _gipfel(runs: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {"GIPFEL_RUNS": str(runs), "GIPFEL_STORAGE_FAST": str(runs)}
    environment = {**os.environ, **own, **variables}
    argv = [sys.executable, "-m", "gipfel_extension.cli", "data", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_an_edf_and_a_job_request_data_together() -> None:
    own = StageRequest(data=("/a",), to="memory")
    asked = {"com.gipfel.stage.data": "/a, /b", "com.gipfel.stage.to": "nvme"}
    assert stage_request(asked) == StageRequest(data=("/a", "/b"), to="nvme")
    assert stage_request(asked, own) == StageRequest(data=("/a", "/b"), to="memory")
    assert (stage_request({}), stage_request({}, own)) == (None, own)
    for wrong in ({"com.gipfel.stage": "relative"}, {**asked, "com.gipfel.stage.to": "tape"}):
        with pytest.raises(GipfelError, match=r"annotation com\.gipfel\.stage is not valid"):
            stage_request(wrong)


def test_a_job_stages_before_its_container_starts(tmp_path: Path) -> None:
    item = stage_item(tmp_path, 0.3)
    environment = {**os.environ, "GIPFEL_STORAGE_FAST": str(tmp_path)}
    run = tmp_path / "run"
    run.mkdir()
    request = StageRequest(data=(item.path,), to="nvme")
    note = stage_before_start(request, run, environment, lambda: False)
    assert "staged on 1 of 1 nodes (nvme)" in note
    assert [each.path for _, each in _staged_on_disk(environment)] == [item.path]
    (run / "transfers" / "1" / "stop").touch()
    missing = request.model_copy(update={"data": ("/none",)})
    assert "Not staged, so the shared files are read" in stage_before_start(
        missing, run, environment, lambda: False
    )
    with pytest.raises(GipfelError, match="could not be staged: /none"):
        stage_before_start(missing.model_copy(update={"on_failure": "stop"}), run, environment, lambda: False)


def test_what_can_not_be_staged_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "here").symlink_to("/etc/passwd")
    (tmp_path / "cut.sqsh").write_bytes(b"x" * 100)
    summary_path(tmp_path / "cut.sqsh").write_text("{}")
    for name, words in (
        ("missing", "No such file"),
        ("links", "not a regular file"),
        ("cut.sqsh", "is not valid"),
    ):
        with pytest.raises(GipfelError, match=words):
            list_items(StageSpec(data=(str(tmp_path / name),)))
    done = _gipfel(tmp_path, "stage", str(tmp_path / "pipe"))
    assert done.returncode == 1
    assert "not a file or a directory" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "transfers").exists()


def test_staging_on_this_machine_is_a_workload_that_is_stopped(tmp_path: Path) -> None:
    item = stage_item(tmp_path, 1.2)
    done = _gipfel(tmp_path, "stage", item.path, "--to", "nvme", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    try:
        assert (found["ready"], found["shared_reads"], found["copies"][0]["tier"]) == (
            True,
            item.size,
            "nvme",
        )
        shown = json.loads(_gipfel(tmp_path, "status", "--json").stdout)
        assert [each["path"] for each in shown["node"]] == [item.path]
        assert list(shown["stagings"]) == ["1"]
    finally:
        (tmp_path / "transfers" / "1" / "stop").touch()
    end = threading.Event()
    folder = tmp_path / "transfers" / "1"
    for _ in range(200):
        if json.loads((folder / "state.json").read_text())["phase"] == "ended":
            break
        end.wait(0.1)
    assert list(_staged_on_disk({"GIPFEL_STORAGE_FAST": str(tmp_path)})) == []
    assert not (folder / "rendezvous.json").exists()


@pytest.fixture
def s3() -> Iterator[S3StandIn]:
    with s3_stand_in() as service:
        service.objects = {"set/a.bin": os.urandom(5_000_000), "set/deep/b": b"22", "other": b"3"}
        yield service


def test_objects_of_s3_are_staged_once_and_containers_have_them(tmp_path: Path, s3: S3StandIn) -> None:
    runs, environment = tmp_path / "runs", {"GIPFEL_STORAGE_FAST": str(tmp_path)}
    done = _gipfel(runs, "stage", "s3://sets/set/", "--to", "nvme", "--json", **environment, **s3.environment)
    assert done.returncode == 0, done.stderr
    try:
        assert s3.sent == 5_000_002
        found = {each.in_containers: each for _, each in _staged_on_disk(environment)}
        assert sorted(found) == ["/s3/sets/set/a.bin", "/s3/sets/set/deep/b"]
        copy = found["/s3/sets/set/a.bin"].copy
        assert Path(copy).read_bytes() == s3.objects["set/a.bin"]
        request = ContainerRequest(edf=Edf(name="e", path=None, image="/i"), command=("true",), scratch="/s")
        changed, _ = use_copies(request, _staged_on_disk(environment))
        assert Mount(source=copy, destination="/s3/sets/set/a.bin", flags=("ro",)) in changed.mounts
        written = b"".join(each.read_bytes() for each in runs.rglob("*") if each.is_file())
        assert b"s3://sets/set/" in written
        assert SECRET.encode() not in written
        assert S3_KEY.encode() not in written
    finally:
        (runs / "transfers" / "1" / "stop").touch()


def test_what_can_not_be_read_from_s3_is_one_line_without_keys(tmp_path: Path, s3: S3StandIn) -> None:
    good, path = s3.environment, tmp_path / ".aws" / "credentials"
    url = {"AWS_ENDPOINT_URL": good["AWS_ENDPOINT_URL"]}
    path.parent.mkdir()
    path.write_text(f"[default]\naws_access_key_id={S3_KEY}\naws_secret_access_key={SECRET}\n")
    home = {**url, "HOME": str(tmp_path)}
    for address, environment, words in (
        ("s3://sets/none", good, "there is no such object"),
        ("s3://sets/none/", good, "there is no such object"),
        ("s3://none/x", good, "there is no such bucket"),
        ("s3://sets/other", {**good, "AWS_SECRET_ACCESS_KEY": "wrong"}, "it refuses access"),
        ("s3://sets/other", {**url, "HOME": "/none"}, "it refuses access"),
        (
            "s3://sets/other",
            {**good, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            "127.0.0.1:9: it does not ans",
        ),
        ("s3://sets/other", home, "Other users may read the secret"),
        (f"s3://{S3_KEY}:{SECRET}@sets/other", good, "An address of S3 is not valid"),
    ):
        with pytest.raises(GipfelError, match=words) as caught:
            list_items(StageSpec(data=(address,)), environment)
        assert SECRET not in str(caught.value)
        assert "\n" not in str(caught.value)
    path.chmod(0o600)
    assert list_items(StageSpec(data=("s3://sets/other",)), home)[0].size == 1


def test_an_object_that_changes_or_is_cut_while_it_is_read_is_refused(s3: S3StandIn) -> None:
    (item,) = list_items(StageSpec(data=("s3://sets/set/a.bin",)), s3.environment)
    service = S3Service(s3.environment)
    assert service.read(item.object, CHUNK_BYTES, 10) == s3.objects["set/a.bin"][CHUNK_BYTES:][:10]
    s3.cut = True
    with pytest.raises(S3Error, match="cut off"):
        service.read(item.object, 0, 100)
    s3.cut, s3.change_after = False, 0
    with pytest.raises(S3Error, match="changed while it was staged"):
        service.check_unchanged(item.object)
    with pytest.raises(S3Error, match="changed while it was staged"):
        S3Service(s3.environment).read(item.object, 0, 100)
