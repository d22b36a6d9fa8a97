"""Working directory and state directory of a server."""

from pathlib import Path

import pytest

from gipfel_cluster.broker.context import workspace_in_container, workspace_on_host
from gipfel_cluster.edf import Edf, Mount


def edf(*mounts: Mount, workdir: str = "") -> Edf:
    return Edf(name="x", path=None, image="/x.sqsh", mounts=mounts, workdir=workdir)


def test_without_mounts_workspace_and_settings_outlive_the_container(tmp_path):
    place = workspace_in_container(edf(), str(tmp_path))
    assert place.directory == f"{tmp_path}/gipfel"
    assert {mount.source for mount in place.mounts} == {f"{tmp_path}/gipfel", f"{tmp_path}/.gipfel/server"}
    assert place.environment["JUPYTER_CONFIG_DIR"].startswith(f"{tmp_path}/.gipfel/server/")


@pytest.mark.parametrize("above", [0, 1])
def test_settings_stay_in_a_mounted_home_directory(tmp_path, above):
    home = tmp_path / "home" / "ada"
    home.mkdir(parents=True)
    mounted = str(home if above == 0 else home.parent)
    place = workspace_in_container(edf(Mount(source=mounted, destination=mounted)), str(home))
    assert place.environment == {}
    assert place.directory == f"{home}/gipfel"


def test_a_workdir_on_a_writable_mount_is_the_workspace(tmp_path):
    mount = Mount(source=str(tmp_path), destination="/work")
    assert workspace_in_container(edf(mount, workdir="/work/a"), str(tmp_path)).directory == "/work/a"
    read_only = Mount(source=str(tmp_path), destination="/work", flags=("ro",))
    place = workspace_in_container(edf(read_only, workdir="/work/a"), str(tmp_path))
    assert place.directory == f"{tmp_path}/gipfel"


def test_without_a_container_the_home_directory_is_the_workspace(tmp_path):
    assert workspace_on_host(None, str(tmp_path)).directory == str(tmp_path)
    assert workspace_on_host(Edf(name="x", path=None, workdir="/w"), str(tmp_path)).directory == "/w"
    assert not Path(tmp_path / "gipfel").exists()
