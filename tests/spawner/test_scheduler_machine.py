"""Detection of Slurm by variables, files and daemons, else by the output of ``sbatch``."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from slurm_commands import FOUND_NOTHING, unconfigured_slurm

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler import SlurmPresence, SlurmScheduler, slurm_presence
from gipfel_cluster.scheduler.protocol import JobRequest


def present(tmp_path: Path, body: str = FOUND_NOTHING, **variables: str) -> SlurmPresence:
    unconfigured_slurm(tmp_path / "bin", body)
    return slurm_presence({"PATH": f"{tmp_path}/bin:{os.defpath}", **variables}, root=tmp_path / "root")


def test_no_commands(tmp_path: Path) -> None:
    found = slurm_presence({"PATH": str(tmp_path)}, root=tmp_path)
    assert not found.commands
    assert not found.configured
    assert found.problem == "Slurm's commands are not on PATH."


def test_commands_without_a_configuration(tmp_path: Path) -> None:
    found = present(tmp_path)
    assert found.commands
    assert not found.configured
    assert found.problem.startswith("Slurm's commands are installed but not configured (")


@pytest.mark.parametrize(
    "name", ["etc/slurm/slurm.conf", "etc/slurm-llnl/slurm.conf", "run/slurm/conf/slurm.conf"]
)
def test_a_file_is_a_configuration(tmp_path: Path, name: str) -> None:
    path = tmp_path / "root" / name
    path.parent.mkdir(parents=True)
    path.touch()
    assert present(tmp_path).source == str(path)


@pytest.mark.parametrize("name", ["SLURM_CONF", "SLURM_CONF_SERVER"])
def test_a_variable_is_a_configuration_and_reaches_the_commands(tmp_path: Path, name: str) -> None:
    assert present(tmp_path, **{name: "elsewhere"}).source == name
    assert not present(tmp_path, **{name: ""}).configured
    present(tmp_path, f'echo "${name}"')
    scheduler = SlurmScheduler(environment={"PATH": f"{tmp_path}/bin:{os.defpath}", name: "elsewhere"})
    with pytest.raises(GipfelError, match="'elsewhere'"):
        asyncio.run(scheduler.submit(JobRequest(name="t", script="#!/bin/sh\n", directory="/")))


@pytest.mark.parametrize(
    ("line", "configured"),
    [
        ("SLURMD_OPTIONS='--conf-server ctl:6817'", True),
        ("#SLURMD_OPTIONS='--conf-server ctl'", False),
        ("", False),
    ],
)
def test_a_daemon_that_fetches_its_configuration(tmp_path: Path, line: str, configured: bool) -> None:
    path = tmp_path / "root/etc/default/sackd"
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert present(tmp_path).configured is configured


@pytest.mark.parametrize(
    "body",
    [
        "echo slurm-wlm 24.11.5",
        # A file with a mistake, and a configless cluster whose controller is down.
        "echo 'sbatch: fatal: Unable to process configuration file' >&2; exit 1",
        "echo 'sbatch: error: _fetch_child: failed to fetch remote configs: Unable to contact' >&2; exit 1",
    ],
)
def test_a_broken_or_silent_slurm_is_still_configured(tmp_path: Path, body: str) -> None:
    assert present(tmp_path, body).configured


def test_only_the_version_of_sbatch_is_queried(tmp_path: Path) -> None:
    present(tmp_path, f'echo "$@" > {tmp_path}/argv; cat > {tmp_path}/stdin')
    assert (tmp_path / "argv").read_text() == "--version\n"
    assert not (tmp_path / "stdin").read_bytes()


@pytest.mark.skipif(
    shutil.which("sbatch") is None or Path("/etc/slurm/slurm.conf").exists(),
    reason="needs Debian's Slurm without a configuration",
)
def test_debians_slurm_as_it_is_installed() -> None:
    environment = {"PATH": os.environ["PATH"]}
    assert slurm_presence(environment).commands
    assert not slurm_presence(environment).configured
    assert slurm_presence({**environment, "SLURM_CONF": "/nonexistent"}).configured
