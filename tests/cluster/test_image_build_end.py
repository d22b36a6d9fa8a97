"""Builds of images that fail, are ended or get a hostile file: what they say, and that they leave nothing."""

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_builds import MARKS, Gipfel, user_environment
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

pytestmark = MARKS


@pytest.mark.parametrize("end", ["stop", "cancel"])
def test_a_job_of_its_own_that_is_ended_leaves_nothing(
    end: str, gipfel: Gipfel, home: Path, engine_user: UnixUser, cluster: OneMachine
) -> None:
    engine_user.write("context/Slow", 'FROM scratch\nADD base.tar /\nUSER 1234\nRUN ["sleep", "4321"]\n')
    words = ("image", "build", "context/Slow", "-o", "slow.sqsh", "--new-job", "--no-cache", "--detach")
    started = gipfel(*words)
    identifier = started.stdout.strip()
    assert started.returncode == 0, started.stderr
    assert wait_until(lambda: bool(_sleeping()), 60), gipfel("logs", f"build:{identifier}").stdout
    found = {each["id"]: each for each in json.loads(gipfel("ps", "--kind", "build", "--json").stdout)}
    assert found[identifier]["state"] == "running"
    if end == "stop":
        assert gipfel("stop", f"build:{identifier}").returncode == 0
    else:
        variables = [f"{name}={value}" for name, value in cluster.environment.items()]
        engine_user.run("env", *variables, "scancel", found[identifier]["job_id"])
    assert wait_until(lambda: not _sleeping(), 40)
    # On a busy machine Slurm kills all of it after `KillWait`: then the next look at it removes what is left.
    outcomes = ("stopped",) if end == "stop" else ("stopped", "lost")
    assert wait_until(
        lambda: _state_of(gipfel, identifier) in outcomes and not _left(home, engine_user, "slow"), 90
    )


def test_a_build_that_is_stopped_in_the_queue_never_starts(
    gipfel: Gipfel, home: Path, cluster: OneMachine
) -> None:
    nodes = ["scontrol", "update", "nodename=node[01-02]"]
    cluster.call([*nodes, "state=drain", "reason=test"])
    try:
        words = ("image", "build", "context", "-o", "queued.sqsh", "--new-job", "--no-cache", "--detach")
        started = gipfel(*words)
        identifier = started.stdout.strip()
        assert started.returncode == 0, started.stderr
        assert _state_of(gipfel, identifier) == "queued"
        assert gipfel("stop", f"build:{identifier}").returncode == 0
        again = gipfel("stop", f"build:{identifier}")
        assert "Traceback" not in again.stderr
        assert _state_of(gipfel, identifier) == "stopped"
        assert cluster.call(["squeue", "--noheader", "--name=gipfel-image-queued"]).strip() == ""
        # As a job does that started in the moment in which it was stopped.
        listed = json.loads(gipfel("ps", "--all", "--kind", "build", "--json").stdout)
        (folder,) = [each["folder"] for each in listed if each["id"] == identifier]
        late = gipfel("image", "build", "--continue", folder)
        assert late.returncode == 1
        assert "The build was stopped" in late.stderr
    finally:
        cluster.call([*nodes, "state=resume"])
    assert not list(home.glob("queued*"))
    assert _state_of(gipfel, identifier) == "stopped"


def _state_of(gipfel: Gipfel, identifier: str) -> str:
    listed = json.loads(gipfel("ps", "--all", "--kind", "build", "--json").stdout)
    return next(str(each["state"]) for each in listed if each["id"] == identifier)


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("RUN true\n", (), "no FROM"),
        ("FROM scratch\nADD nothing.tar /\n", (), "nothing.tar does not exist"),
        ("FROM scratch\nADD ../../secret /\n", (), "outside of"),
        ("FROM scratch\nFLY away\n", (), "Unknown instruction"),
        ("FROM scratch\nADD base.tar /\nRUN ls /nowhere\n", (), 'RUN ls /nowhere"'),
        ("FROM scratch\n", ("--base", "gone.tar"), "gone.tar does not exist"),
        ("FROM scratch\nADD base.tar /\n", ("--key", "gone"), "key"),
        ("FROM scratch\nARG LD_PRELOAD\n", ("--build-arg", "LD_PRELOAD=/x.so"), "LD_PRELOAD"),
    ],
)  # fmt: skip
def test_a_build_that_fails_says_why_and_leaves_nothing(
    gipfel: Gipfel, home: Path, engine_user: UnixUser, text: str, options: tuple[str, ...], reason: str
) -> None:
    engine_user.write("context/Broken", text)
    done = gipfel("image", "build", "context/Broken", "-o", "broken.sqsh", *options)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, reason in last, last.startswith("gipfel: ")) == (1, True, True), done.stderr
    assert not _left(home, engine_user, "broken")


def _left(home: Path, user: UnixUser, name: str) -> list[str]:
    files = [each.name for each in home.iterdir() if name in each.name]
    stores = [each.name for each in (home / ".cache/gipfel/images").glob("build-*")]
    # Its namespaces are the user's, and processes of other subordinate ids may run in them.
    deadline = time.monotonic() + 5
    while (left := user.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [*files, *stores, *(str(pid) for pid in left)]


def _hostile_base(good: Path, target: Path, outside: Path) -> None:
    """Write a tar file with the content of a good one, and entries that point out of it."""
    with tarfile.open(good) as source, tarfile.open(target, "w") as archive:
        for member in source:
            archive.addfile(member, source.extractfile(member) if member.isreg() else None)

        def add(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, link, mode
            member.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"evil"))

        add(f"../../../../../../../..{outside}/traversal")
        add(f"{outside}/absolute")
        add("away", tarfile.SYMTYPE, str(outside))
        add("away/through-link")
        add("hard", tarfile.LNKTYPE, f"../../../../../..{outside}/secret")
        add("usr/bin/raised", mode=0o4755)
        add("opt/disk", tarfile.CHRTYPE)


def test_a_hostile_tar_writes_and_reads_nothing_outside(
    gipfel: Gipfel, home: Path, engine_user: UnixUser
) -> None:
    outside = home / "outside"
    outside.mkdir()
    (outside / "secret").write_text("of the user")
    engine_user.own(outside, 0o700)
    engine_user.own(outside / "secret")
    engine_user.write("context/Hostile", "FROM scratch\nADD hostile.tar /\n")
    _hostile_base(home / "context/base.tar", home / "context/hostile.tar", outside)
    engine_user.own(home / "context/hostile.tar")
    engine_user.write("context/Based", 'FROM scratch\nRUN ["touch", "/made"]\n')
    based = ("context/Based", "-o", "hostile.sqsh", "--base", "context/hostile.tar")
    for words in (("context/Hostile", "-o", "hostile.sqsh"), based):
        done = gipfel("image", "build", *words, "--no-cache", "--no-sign", "--replace")
        assert [each.name for each in outside.iterdir()] == ["secret"], done.stderr
        assert "Traceback" not in done.stderr
        if done.returncode:
            assert done.stderr.splitlines()[-1].startswith("gipfel: ")
            assert not _left(home, engine_user, "hostile.sqsh")
            continue
        listing = subprocess.run(
            ["unsquashfs", "-lln", home / "hostile.sqsh"], capture_output=True, text=True, check=True
        ).stdout
        content = subprocess.run(["unsquashfs", "-cat", home / "hostile.sqsh", "hard"], capture_output=True)
        assert b"of the user" not in content.stdout, listing
        scanned = json.loads(gipfel("scan", "hostile.sqsh", "--json").stdout)
        rules = {finding["rule"] for item in scanned["items"] for finding in item["findings"]}
        assert "set-uid" in " ".join(rules) or scanned["not_judged"], (rules, listing)


def test_a_full_disk_is_one_line(gipfel: Gipfel, home: Path, engine_user: UnixUser) -> None:
    small = home / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        engine_user.own(small, 0o700)
        done = gipfel("image", "build", "context", "-o", "small/full.sqsh", "--build-arg", "COLOUR=sky")
        last = done.stderr.splitlines()[-1]
        assert (done.returncode, "disk is full" in last) == (1, True), done.stderr
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.fixture
def slow_build(
    engine_user: UnixUser, runtime: Path, home: Path, cluster: OneMachine
) -> Iterator["subprocess.Popen[str]"]:
    """A build whose command runs as another user of the namespace, after it has begun."""
    engine_user.write("context/Slow", 'FROM scratch\nADD base.tar /\nUSER 1234\nRUN ["sleep", "4321"]\n')
    words = (f"{runtime}/bin/gipfel", "image", "build", "context/Slow", "-o", "slow.sqsh", "--no-cache")
    become = ["setpriv", f"--reuid={engine_user.uid}", f"--regid={engine_user.uid}", "--clear-groups"]
    process = subprocess.Popen(
        [*become, *user_environment(cluster, home), *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert wait_until(lambda: bool(_sleeping()), 60)
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in _sleeping():
            os.kill(pid, signal.SIGKILL)


def _sleeping() -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [int(entry.parent.name)] if entry.read_bytes().endswith(b"/sleep\x004321\x00") else []
        except OSError:
            continue
    return found


def test_ctrl_c_leaves_nothing(
    slow_build: "subprocess.Popen[str]", gipfel: Gipfel, home: Path, engine_user: UnixUser
) -> None:
    slow_build.send_signal(signal.SIGINT)
    _, said = slow_build.communicate(timeout=60)
    assert (slow_build.returncode, said.splitlines()[-1]) == (130, "gipfel: interrupted.")
    assert wait_until(lambda: not _sleeping(), 5)
    assert not _left(home, engine_user, "slow")
    listed = json.loads(gipfel("ps", "--all", "--kind", "build", "--json").stdout)
    assert (listed[-1]["state"], listed[-1]["title"]) == ("stopped", "image slow.sqsh")


@pytest.mark.parametrize("killed", ["supervisor", "build"])
def test_a_build_that_is_killed_leaves_nothing(
    killed: str,
    slow_build: "subprocess.Popen[str]",
    gipfel: Gipfel,
    home: Path,
    engine_user: UnixUser,
) -> None:
    newest = max((home / ".gipfel/runs/builds").iterdir(), key=lambda each: int(each.name))
    child = json.loads((newest / "state.json").read_text())["supervisor"]["pid"]
    parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent if killed == "supervisor" else child, signal.SIGKILL)
    _, said = slow_build.communicate(timeout=60)
    assert wait_until(lambda: not _sleeping(), 15)
    assert wait_until(lambda: not _left(home, engine_user, "slow"), 15)
    listed = json.loads(gipfel("ps", "--all", "--kind", "build", "--json").stdout)
    if killed == "build":
        assert "The build's process was ended by SIGKILL" in said
        assert (slow_build.returncode, listed[-1]["state"]) == (137, "failed")
    else:
        assert listed[-1]["state"] == "stopped"


def test_a_detached_build_is_stopped(gipfel: Gipfel, home: Path, engine_user: UnixUser) -> None:
    engine_user.write("context/Slow", 'FROM scratch\nADD base.tar /\nUSER 1234\nRUN ["sleep", "4321"]\n')
    identifier = gipfel("image", "build", "context/Slow", "-o", "slow.sqsh", "--detach").stdout.strip()
    assert wait_until(lambda: bool(_sleeping()), 60)
    assert gipfel("stop", f"build:{identifier}").returncode == 0
    assert not _sleeping()
    assert not _left(home, engine_user, "slow")
    assert "STEP 4/4" in gipfel("logs", f"build:{identifier}").stdout
    cleared = gipfel("image", "clear")
    assert cleared.returncode == 0, cleared.stderr
    assert not (home / ".cache/gipfel/images/kept").exists()
    # The user's own images are elsewhere.
    assert not (home / ".local/share/containers").exists()
