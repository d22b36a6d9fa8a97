"""A mistake gives one line with the problem and the fix, and never a traceback."""

import os
import time
from collections.abc import Callable

import pytest
from edf_files import write_edf
from hub_process import HubProcess
from hub_user import HubUser
from images import Images
from one_machine import OneMachine
from unix_users import UnixUser

pytestmark = pytest.mark.cluster


def _no_toml(user: UnixUser, images: Images) -> str:
    user.write(".edf/bad.toml", 'image = "/x\nmounts = [\n')
    return "bad.toml"


def _unreadable(user: UnixUser, images: Images) -> str:
    path = write_edf(user, "bad", image=images.debian)
    os.chown(path, 0, -1)
    return "bad.toml"


def _missing_image(user: UnixUser, images: Images) -> str:
    write_edf(user, "bad", image="/nowhere/image.sqsh")
    return "/nowhere/image.sqsh"


def _no_squashfs(user: UnixUser, images: Images) -> str:
    path = user.write("fake.sqsh", "this is no image\n" * 1000)
    write_edf(user, "bad", image=path)
    return "SquashFS"


def _truncated(user: UnixUser, images: Images) -> str:
    path = user.home / "short.sqsh"
    path.write_bytes(images.debian.read_bytes()[:64])
    user.own(path)
    write_edf(user, "bad", image=path)
    return "short.sqsh"


def _missing_mount(user: UnixUser, images: Images) -> str:
    write_edf(user, "bad", image=images.debian, mounts=("/nowhere/data:/data",))
    return "/nowhere/data"


def _unknown_variable(user: UnixUser, images: Images) -> str:
    write_edf(user, "bad", image="${NOWHERE_AT_ALL}/image.sqsh")
    return "NOWHERE_AT_ALL"


def _no_edf(user: UnixUser, images: Images) -> str:
    (user.home / ".edf" / "bad.toml").unlink(missing_ok=True)
    return "bad"


_MISTAKES: list[Callable[[UnixUser, Images], str]] = [
    _no_toml,
    _unreadable,
    _missing_image,
    _no_squashfs,
    _truncated,
    _missing_mount,
    _unknown_variable,
    _no_edf,
]


def _refusal(user: HubUser, options: dict[str, object]) -> str:
    """The one line by which the hub refuses to start a server, from its answer or from the waiting page."""
    answer = user.request_server(options)
    if answer.status_code >= 400:
        message = str(answer.json()["message"])
    else:
        last = user.progress()[-1]
        assert last.get("failed"), last
        message = str(last["message"])
    assert "Traceback" not in answer.text
    assert "\n" not in message.strip()
    return message


@pytest.mark.parametrize("mistake", _MISTAKES, ids=lambda mistake: mistake.__name__.strip("_"))
def test_a_mistake_in_an_edf_is_told_before_a_job_is_made(
    hub: HubProcess,
    cluster: OneMachine,
    plain_users: tuple[UnixUser, UnixUser],
    images: Images,
    mistake: Callable[[UnixUser, Images], str],
) -> None:
    unix = plain_users[0]
    words = mistake(unix, images)
    try:
        message = _refusal(hub.user(unix.name), {"edf": "bad"})
    finally:
        (unix.home / ".edf" / "bad.toml").unlink(missing_ok=True)
    assert words in message
    assert not cluster.call(["squeue", "--noheader", f"--user={unix.name}"]).strip()
    assert "Traceback" not in hub.last_words(40)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nosuch"}, "nosuch"),
        ({"gpus": 99}, "GPU"),
        ({"gpus": -1}, "gpus"),
        ({"nodes": 0}, "nodes"),
        ({"time": "soon"}, "time"),
        ({"partition": "debug", "time": "10:00:00"}, "time"),
        ({"partition": "debug\n#SBATCH --uid=0"}, "partition"),
        ({"edf": "bad\nname"}, "break"),
        ({"image": "/x"}, "image"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_in_the_options_is_told_before_a_job_is_made(
    hub: HubProcess,
    cluster: OneMachine,
    plain_users: tuple[UnixUser, UnixUser],
    options: dict[str, object],
    words: str,
) -> None:
    unix = plain_users[0]
    message = _refusal(hub.user(unix.name), options)
    assert words.lower() in message.lower()
    assert not cluster.call(["squeue", "--noheader", f"--user={unix.name}"]).strip()


def test_a_job_that_dies_at_once_is_told_with_its_reason(
    hub: HubProcess, plain_users: tuple[UnixUser, UnixUser], images: Images
) -> None:
    unix = plain_users[0]
    write_edf(unix, "dies", image=images.debian)
    # The EDF is right, but the run folder can't be made.
    runs = unix.write(".gipfel/runs", "a file where a folder should be\n")
    user = hub.user(unix.name)
    try:
        began = time.monotonic()
        message = _refusal(user, {"edf": "dies"})
    finally:
        runs.unlink()
    assert time.monotonic() - began < 60
    assert "run folder" in message
