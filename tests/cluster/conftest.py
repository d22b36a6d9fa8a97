"""Fixtures of the tests on a real cluster: the cluster, images, users, a runtime and a hub."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import images as image_builder
import one_machine
import pytest
from engine_containers import engine_place, engine_user  # noqa: F401 - fixtures
from hub_process import HubProcess, proxy_folder
from image_builds import gipfel, home  # noqa: F401 - fixtures
from images import Images
from kept_runtime import runtime_for_tests, service_environments
from one_machine import OneMachine
from unix_users import UnixUser, unix_user


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with the reason where this machine can't run a cluster."""
    reason = one_machine.missing()
    if reason:
        for item in items:
            if item.get_closest_marker("cluster"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared_folder() -> Iterator[Path]:
    """A folder with a short path that every user may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="gipfel-t-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def world_folder(shared_folder: Path) -> Iterator[Path]:
    """A folder of one test that every user may pass through."""
    folder = Path(tempfile.mkdtemp(dir=shared_folder))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(shared_folder: Path) -> Iterator[OneMachine]:
    """A Slurm of two nodes with four GPUs each, in name."""
    with OneMachine(shared_folder / "slurm") as machine:
        yield machine


@pytest.fixture(scope="session")
def images() -> Images:
    """Debian without Python, Debian with it, and the first one unpacked."""
    reason = image_builder.missing()
    if reason:
        pytest.skip(reason)
    return image_builder.build_images()


@pytest.fixture(scope="session")
def plain_users(shared_folder: Path) -> Iterator[tuple[UnixUser, UnixUser]]:
    """Two unix users without any rights."""
    with unix_user("a", shared_folder) as first, unix_user("b", shared_folder) as second:
        yield first, second


@pytest.fixture(scope="session")
def runtime() -> Path:
    """The runtime folder, where every user may read it; kept for the next time."""
    return runtime_for_tests()


@pytest.fixture(scope="session")
def fuse() -> None:
    """Plain users may mount images: what a site's udev rule does."""
    device = Path("/dev/fuse")
    if not device.exists():
        pytest.skip("This machine has no /dev/fuse.")
    device.chmod(0o666)


@pytest.fixture(scope="session")
def hub(
    cluster: OneMachine, runtime: Path, plain_users: tuple[UnixUser, UnixUser], fuse: None
) -> Iterator[HubProcess]:
    """A hub that runs as root with this project's own configuration and submits to the cluster."""
    state = Path(tempfile.mkdtemp(prefix="gipfel-hub-"))
    environment = {
        **cluster.environment,
        "GIPFEL_SCHEDULER": "slurm",
        "GIPFEL_CLUSTER": "tests",
        "GIPFEL_RUNTIME": str(runtime),
        "GIPFEL_HUB_IP": cluster.hub_address,
        "GIPFEL_SERVICE_ENVIRONMENTS": str(service_environments()),
    }
    try:
        with HubProcess(state, environment, proxy=proxy_folder()) as process:
            yield process
    finally:
        shutil.rmtree(state, ignore_errors=True)
