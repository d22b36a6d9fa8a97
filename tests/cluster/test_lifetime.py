"""End of a session: only its run folder is left."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from edf_files import write_edf
from hub_process import HubProcess
from hub_user import HubUser
from images import Images
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.store.segments import read_samples

pytestmark = pytest.mark.cluster


def _mounts(pid: int | str) -> list[str]:
    return [line.split(" ", 2)[2] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]


def _owned(user: UnixUser) -> set[Path]:
    """Return what a user has outside the home folder, where anybody may write."""
    folders = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
    return {path for folder in folders for path in folder.iterdir() if _is(path, user)}


def _is(path: Path, user: UnixUser) -> bool:
    try:
        return path.lstat().st_uid == user.uid and not path.is_relative_to(user.home)
    except OSError:
        return False


def _named(user: UnixUser, *words: str) -> list[psutil.Process]:
    """The user's processes whose command line holds all of these words."""
    found = []
    for pid in user.processes():
        try:
            process = psutil.Process(pid)
            if all(word in " ".join(process.cmdline()) for word in words):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def unix(plain_users: tuple[UnixUser, UnixUser], images: Images) -> UnixUser:
    user = plain_users[1]
    write_edf(user, "leaving", image=images.debian)
    return user


@pytest.fixture
def before_all(unix: UnixUser) -> set[Path]:
    """Return what the user has before the server starts."""
    return _owned(unix)


@pytest.fixture
def running(hub: HubProcess, unix: UnixUser, before_all: set[Path]) -> Iterator[HubUser]:
    """A server with a busy kernel and programs that try to stay."""
    user = hub.user(unix.name)
    user.start_server({"edf": "leaving", "gpus": 1})
    with user.kernel() as kernel:
        stay = "trap '' TERM HUP INT; sleep 4711"
        done = kernel.run(
            "import subprocess\n"
            f"subprocess.Popen(['sh', '-c', {stay!r}], start_new_session=True)\n"
            "subprocess.Popen(['setsid', '--fork', 'sleep', '4712'])"
        )
        assert not done.error
    assert wait_until(lambda: len(_named(unix, "sleep", "471")) >= 2, 10)
    yield user
    user.stop_server()


def test_stop_ends_the_job_and_leaves_no_process_mount_or_folder(
    running: HubUser, unix: UnixUser, cluster: OneMachine, before_all: set[Path]
) -> None:
    before = {node: _mounts(cluster.pid(node)) for node in cluster.node_names}
    ours = _mounts("self")
    running.stop_server()
    assert wait_until(lambda: not unix.processes(), 15), [
        psutil.Process(pid).cmdline() for pid in unix.processes()
    ]
    assert not cluster.call(["squeue", "--noheader", f"--user={unix.name}"]).strip()
    assert {node: _mounts(cluster.pid(node)) for node in cluster.node_names} == before
    assert _mounts("self") == ours
    assert not _owned(unix) - before_all


def test_the_run_folder_stays_and_reads_back(running: HubUser, unix: UnixUser) -> None:
    running.stop_server()
    latest = max((unix.home / ".gipfel" / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    record = (latest / "record.json").read_text()
    assert '"ended": "2' in record
    assert list(latest.glob("telemetry/*.closed.*"))
    # A lock stays where it is: removing it would let two hold it.
    assert not [path for path in latest.rglob(".*") if path.is_file() and path.suffix != ".lock"]


def test_a_job_that_is_cancelled_from_outside_ends_the_server_in_the_hub(
    running: HubUser, unix: UnixUser, cluster: OneMachine, before_all: set[Path]
) -> None:
    job = cluster.call(["squeue", "--noheader", f"--user={unix.name}", "--format=%A"]).strip()
    assert unix.run("env", f"SLURM_CONF={cluster.environment['SLURM_CONF']}", "scancel", job).returncode == 0
    assert wait_until(lambda: not unix.processes(), 20)
    assert wait_until(lambda: running.server() is None, 90)
    assert not _owned(unix) - before_all


def test_killing_the_container_leaves_nothing_and_ends_the_job(
    running: HubUser, unix: UnixUser, cluster: OneMachine, before_all: set[Path]
) -> None:
    containers = _named(unix, "gipfel_cluster/engines/sandbox/start.py")
    assert containers
    outer = min(containers, key=lambda process: process.create_time())
    outer.kill()
    assert wait_until(lambda: not unix.processes(), 20), [
        psutil.Process(pid).cmdline() for pid in unix.processes()
    ]
    assert wait_until(lambda: not cluster.call(["squeue", "--noheader", f"--user={unix.name}"]).strip(), 10)
    assert not _owned(unix) - before_all


def test_a_killed_recorder_leaves_readable_segments_and_is_started_again(
    running: HubUser, unix: UnixUser
) -> None:
    recorders = _named(unix, "gipfel_extension.recorder")
    assert len(recorders) == 1
    assert wait_until(lambda: running.request("gipfel/saturation").json()["status"]["state"] == "live", 30)
    latest = max((unix.home / ".gipfel" / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert wait_until(lambda: any(p.stat().st_size > 4000 for p in latest.glob("telemetry/*.arrows")), 20)
    os.kill(recorders[0].pid, signal.SIGKILL)
    table = read_samples(latest / "telemetry", simulated=False)
    assert table.rows >= 2
    assert {segment.state for segment in table.segments} <= {"open", "torn"}
    assert wait_until(
        lambda: {each.pid for each in _named(unix, "gipfel_extension.recorder")} - {recorders[0].pid},
        40,
    )
    assert wait_until(
        lambda: "recorder_lost" in {event.kind for event in read_events(latest / "telemetry")}, 40
    )
    assert wait_until(lambda: running.request("gipfel/saturation").json()["status"]["state"] == "live", 40)
    assert running.request("api/status").status_code == 200
