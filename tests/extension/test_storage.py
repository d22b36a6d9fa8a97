"""A job's input and output, and its file systems: counters, probes, stripes, and what a monitor records.

The files of Lustre and NFS are made from their documented formats: none was read on such hardware.
"""

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gipfel_extension.recorder.storage_monitor import StorageMonitor
from gipfel_extension.storage import (
    read_storage,
)
from gipfel_extension.storage.file_systems import (
    OpenCounter,
    SiteStripes,
    Target,
    mending,
    parse_getstripe,
    probe,
    read_stripes,
    stripes_of,
)
from gipfel_extension.storage.job_files import JobFiles
from gipfel_extension.telemetry.sources import SystemClock
from gipfel_extension.telemetry.sources.file_systems import (
    MountTable,
    class_of,
    parse_mountinfo,
    parse_nfs,
    rates_of,
    read_clients,
)

_DATA = Path(__file__).parent / "data"
_S = 10**9

_MOUNTINFO = r"""
22 1 0:21 / /proc rw - proc proc rw
25 1 259:1 / / rw,relatime - ext4 /dev/root rw
30 25 0:40 / /scratch rw shared:1 - lustre 10.0.0.1@tcp:10.0.0.2@tcp:/scratch rw
31 25 0:41 / /users rw - nfs4 nas:/home rw
32 25 0:42 / /users/a\040b rw - fuse.sshfs me@host:/x rw
33 25 0:43 / /data rw - fuse.squashfuse squashfuse ro
34 25 0:44 / /dev/shm rw - tmpfs tmpfs rw
broken line - ext4
35 25 x:y / /odd rw - ext4 /dev/x rw
"""

_MOUNTSTATS = """device nas:/home mounted on /users with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tbytes:\t1 2 3 4 {read} 6000 7 8
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        OPEN: {opens} {opens} 0 300 400 1 {open_ms} 60 0
\t     GETATTR: 100 100 0 300 400 1 50 60 0
\t        READ: 7 7 0 300 400 1 9999 9999 0
\t      ACCESS: 12 12
"""


def _mounts() -> MountTable:
    return parse_mountinfo(_MOUNTINFO)


def test_mounts_have_tiers_and_the_innermost_holds_a_path() -> None:
    table = _mounts()
    tiers = {each.path: each.tier for each in table.mounts}
    assert tiers == {
        "/": "local",
        "/scratch": "shared",
        "/users": "shared",
        "/users/a b": "shared",
        "/data": "image",
        "/dev/shm": "memory",
    }
    innermost = table.of_path("/users/a b/c")
    assert innermost is not None
    assert innermost.path == "/users/a b"
    outer = table.of_path("/users2/x")
    assert outer is not None
    assert outer.path == "/"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/env/lib/python3.12/site-packages/torch/data.bin", "program"),
        ("/scratch/step-100/model.safetensors", "checkpoint"),
        ("/scratch/shard-000001.tar", "shard"),
        ("/scratch/rank-0.log", "log"),
        ("/scratch/n0123/7.jpg", "data"),
    ],
)
def test_a_files_name_says_its_class(path: str, kind: str) -> None:
    assert class_of(path) == kind


def test_nfs_counts_metadata_of_each_mount_with_its_time() -> None:
    before, now = (
        parse_nfs(_MOUNTSTATS.format(read=read, opens=opens, open_ms=ms).splitlines())[0]
        for read, opens, ms in ((5000, 10, 20), (25000, 110, 820))
    )
    assert (now.path, now.opens, now.metadata) == ("/users", 110, 210)
    rates = rates_of(before, now, 10.0)
    assert rates.read_bytes == 2000
    assert rates.opens == 10
    assert rates.metadata_ms == 8
    wrapped = rates_of(now, before, 10.0)
    assert (wrapped.read_bytes, wrapped.opens, wrapped.metadata_ms) == (None, None, None)


def test_made_trees_of_lustre_and_nfs_say_what_is_missing(tmp_path: Path) -> None:
    found = {each.path: each for each in read_clients(_mounts(), tmp_path)}
    assert found["/users"].why == f"{tmp_path}/proc/self/mountstats can't be read: No such file or directory."
    assert found["/scratch"].why == "Lustre's client has no statistics here."
    client = tmp_path / "sys/kernel/debug/lustre/llite/scratch-ffff8c0d"
    client.mkdir(parents=True)
    (client / "stats").write_bytes((_DATA / "lustre_stats.txt").read_bytes())
    (tmp_path / "proc/self").mkdir(parents=True)
    # Cut in the middle of a line.
    (tmp_path / "proc/self/mountstats").write_text(_MOUNTSTATS.format(read=1, opens=2, open_ms=3)[:130])
    found = {each.path: each for each in read_clients(_mounts(), tmp_path)}
    assert found["/scratch"].opens == 1525
    assert found["/scratch"].metadata_ms == pytest.approx((99123 + 51231 + 99999 + 600 + 99) / 1000)
    assert not found["/users"].metadata
    (client / "stats").write_text("")
    assert read_clients(_mounts(), tmp_path)[1].why == "The statistics of llite are empty."
    (client / "stats").unlink()
    (client / "stats").mkdir()
    assert "can't be read: Is a directory" in read_clients(_mounts(), tmp_path)[1].why


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
def test_what_only_root_reads_is_named(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/debug/lustre/llite").mkdir(parents=True)
    (tmp_path / "sys").chmod(0o700)
    os.seteuid(65534)
    try:
        (lustre,) = (each for each in read_clients(_mounts(), tmp_path) if each.kind == "lustre")
    finally:
        os.seteuid(0)
    assert "Only root reads /sys/kernel/debug" in lustre.why


_PLAIN = """/scratch/big.sqsh
lmm_stripe_count:  1
lmm_stripe_size:   1048576
lmm_pattern:       raid0
lmm_stripe_offset: 3
\tobdidx\t\t objid\t\t objid\t\t group
\t     3\t          2\t          0x2\t                0
"""
_COMPOSITE = """/scratch/big.sqsh
  lcm_layout_gen:    4
  lcm_mirror_count:  1
  lcm_entry_count:   3
    lcme_id:             1
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   4194304
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
    lcme_id:             2
    lcme_flags:          init
    lcme_extent.e_start: 4194304
    lcme_extent.e_end:   67108864
      lmm_stripe_count:  4
      lmm_stripe_size:   4194304
    lcme_id:             3
    lcme_flags:          {flags}
    lcme_extent.e_start: 67108864
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  32
      lmm_stripe_size:   4194304
"""


def test_stripes_are_read_from_each_form_of_getstripe() -> None:
    size = 20 << 30
    assert stripes_of(parse_getstripe(_PLAIN), size) == 1
    assert stripes_of(parse_getstripe(_COMPOSITE.format(flags="init")), size) == 32
    assert stripes_of(parse_getstripe(_COMPOSITE.format(flags="0")), 60 << 20) == 4
    assert (
        stripes_of(parse_getstripe("/x\nstripe_count:  -1 stripe_size:   1048576 pattern: raid0\n"), size)
        == -1
    )
    for odd in ("", "/x has no stripe info\n", "lmm_stripe_count: many\n", _COMPOSITE[:200]):
        assert stripes_of(parse_getstripe(odd), size) is None


def test_the_command_that_mends_stripes_is_named() -> None:
    site = SiteStripes.from_environment({"GIPFEL_STRIPES": "16x8M"})
    text = mending("/scratch/my file.sqsh", 20 * 10**9, 1, site)
    assert "lfs migrate --stripe-count 16 --stripe-size 8M '/scratch/my file.sqsh'" in text
    assert "is spread over 1 storage target." in text
    for size, stripes in ((20 << 30, 32), (20 << 30, -1), (20 << 30, None), (1000, 1)):
        assert not mending("/x", size, stripes, site)
    for value in ("32", "0x4M", "32x4", "32x4M; rm"):
        with pytest.raises(ValueError, match="not of the form"):
            SiteStripes.from_environment({"GIPFEL_STRIPES": value})


def test_lfs_is_asked_and_its_failures_are_no_answer(tmp_path: Path) -> None:
    lfs = tmp_path / "lfs"
    lfs.write_text(
        '#!/bin/sh\n[ "$1 $2 $3" = "getstripe -- --help" ] && printf "lmm_stripe_count: 2\\n" || exit 1\n'
    )
    lfs.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert read_stripes(Path("--help"), 5, environment) == 2
    assert read_stripes(Path("/other"), 5, environment) is None
    assert read_stripes(Path("/other"), 5, {"PATH": str(tmp_path / "none")}) is None


_READER = """
import sys
files = {}
for line in sys.stdin:
    name, offset, size = line.split()
    file = files.setdefault(name, open(name, "rb", buffering=0))
    if offset != "-":
        file.seek(int(offset))
    file.read(int(size))
    print("done", flush=True)
"""


@pytest.fixture
def reader() -> Iterator["subprocess.Popen[str]"]:
    """Start a process of rank 3 that reads what it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", _READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RANK": "3", "WORLD_SIZE": "4"},
    )
    yield process
    process.kill()
    process.communicate()


def _tell(process: "subprocess.Popen[str]", name: Path, offset: str, size: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{name} {offset} {size}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def _sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_reads_of_a_rank_and_the_pattern_of_each_file_are_seen(
    tmp_path: Path, reader: "subprocess.Popen[str]"
) -> None:
    for name in ("random", "sequential", "small"):
        (tmp_path / name).mkdir()
    random = _sparse(tmp_path / "random/a.tar", 1 << 30)
    sequential = _sparse(tmp_path / "sequential/b.tar", 1 << 30)
    watch = JobFiles()
    for step in range(6):
        _tell(reader, random, str((step * 7919 % 6) << 27), 4096)
        _tell(reader, sequential, "-", 1 << 20)
        for number in range(2):
            _tell(reader, _sparse(tmp_path / f"small/{step}-{number}.jpg", 3000), "-", 3000)
        watch.look([reader.pid, 999_999_999])
    patterns = {Path(each.directory).name: each.pattern for each in watch.groups() if each.kind != "program"}
    assert patterns == {"random": "random", "sequential": "sequential", "small": "small files"}
    small = next(each for each in watch.groups() if each.directory.endswith("small"))
    assert (small.files, small.bytes, small.ranks, small.kind) == (12, 36_000, {3}, "data")
    (rank,) = (each for each in watch.take_ranks() if each.rank == 3)
    assert rank.read >= 5 << 20
    assert rank.reads >= 15
    assert rank.looks == 6
    assert not watch.take_ranks()


def test_many_directories_of_a_data_set_are_one_group(
    tmp_path: Path, reader: "subprocess.Popen[str]"
) -> None:
    for number in range(6):
        (tmp_path / f"n{number}").mkdir()
        _tell(reader, _sparse(tmp_path / f"n{number}/1.jpg", 500), "-", 10)
    watch = JobFiles()
    watch.look([reader.pid])
    (group,) = (
        each for each in watch.groups() if each.kind == "data" and each.directory.startswith(str(tmp_path))
    )
    assert (group.directory, group.files) == (f"{tmp_path}/*", 6)


def test_opened_files_are_counted_in_the_directories_of_the_job(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    counter = OpenCounter()
    counter.watch({"/in/job/a": str(tmp_path / "a"), "/gone": str(tmp_path / "gone")})
    assert counter.directories == 2, "the one beside it is watched, too"

    def open_them() -> None:
        for _ in range(10):
            # The kernel joins equal events that follow each other.
            for name in ("a", "b"):
                (tmp_path / name / "file").read_text()

    thread = threading.Thread(target=open_them)

    def clock() -> float:
        # The first call is the beginning of the count.
        if thread.ident is None:
            thread.start()
        return time.monotonic()

    counts, seconds = counter.count(0.2, clock)
    thread.join()
    counter.close()
    assert counts == {"/in/job/a": 10, "/in/job/b": 10}
    assert seconds >= 0.2
    assert not counter.why


def test_a_probe_measures_names_files_and_reads_and_leaves_nothing(tmp_path: Path) -> None:
    example = _sparse(tmp_path / "example", 100_000)
    times = probe(Target("/", tmp_path, writable=True, example=example))
    for each in (times.lookup_ms, times.create_ms, times.write_ms, times.read_ms):
        assert each is not None
        assert each > 0
    assert [path.name for path in tmp_path.iterdir()] == ["example"]
    assert not times.why
    os.mkfifo(tmp_path / "pipe")
    odd = probe(Target("/", tmp_path / "none", writable=True, example=tmp_path / "pipe"))
    assert odd.lookup_ms is not None, "a name in a directory that is not there is not there either"
    assert "Creating a file" in odd.why
    assert "Reading pipe" in odd.why


def test_a_monitor_records_a_job_and_ends_at_once(tmp_path: Path, reader: "subprocess.Popen[str]") -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    data = _sparse(tmp_path / "data.tar", 1 << 20)
    _tell(reader, data, "-", 4096)
    monitor = StorageMonitor(
        run, "n1", root_pid=os.getpid(), environment=dict(os.environ), clock=SystemClock(), probing=True
    )
    _tell(reader, data, "-", 4096)
    started = time.monotonic()
    monitor.close()
    assert time.monotonic() - started < 2
    record = read_storage(run)
    assert record is not None
    assert [each.largest_path for each in record.files if each.kind == "shard"] == [str(data)]
    assert [each.rank for each in record.periods[0].ranks if each.rank is not None] == [3]
    assert stat.S_IMODE((run / "storage/n1.jsonl").stat().st_mode) == 0o600
    # A probe that is under way ends by itself.
    end = time.monotonic() + 10
    while [path.name for path in run.iterdir()] != ["storage"]:
        assert time.monotonic() < end, "the probe leaves a file"
        time.sleep(0.01)
