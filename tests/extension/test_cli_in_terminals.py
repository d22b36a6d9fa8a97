"""The command and the environment's PATH in the terminals of a server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gipfel_extension.cli.in_terminals import prepare_terminals


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A runtime with the command and a Python beside it."""
    (tmp_path / "runtime/bin").mkdir(parents=True)
    for name in ("gipfel", "python3"):
        program = tmp_path / "runtime/bin" / name
        program.write_text(f"#!/bin/sh\necho {name} of the runtime\n")
        program.chmod(0o755)
    return tmp_path / "runtime"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = f"{tmp_path}/image:/usr/bin:/bin"
    return {"GIPFEL_ENGINE": "bubblewrap", "JUPYTER_RUNTIME_DIR": str(tmp_path / "j"), "PATH": path}


def test_the_command_is_found_last_and_nothing_else_of_the_runtime(
    prefix: Path, environment: dict[str, str]
) -> None:
    before = environment["PATH"]
    arguments = prepare_terminals(environment, prefix=prefix)
    assert environment["PATH"] == f"{before}:{environment['JUPYTER_RUNTIME_DIR']}/bin"
    said = subprocess.run(["gipfel"], env=environment, capture_output=True, text=True, check=True).stdout
    assert said == "gipfel of the runtime\n"
    assert os.listdir(environment["PATH"].rpartition(":")[2]) == ["gipfel"]
    (argument,) = arguments
    # No -l: a login shell would set PATH anew.
    assert argument == f"--ServerApp.terminado_settings=shell_command={shutil.which('bash')}"


def test_an_images_own_command_stays_and_so_does_the_users_shell(
    tmp_path: Path, prefix: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "image").mkdir()
    shutil.copy(prefix / "bin/gipfel", tmp_path / "image/gipfel")
    before = environment["PATH"]
    assert prepare_terminals(environment | {"SHELL": "/bin/sh"}, prefix=prefix)[0].endswith("=/bin/sh")
    assert environment["PATH"] == before
    assert prepare_terminals(environment | {"SHELL": "/nowhere/zsh"}, prefix=prefix)[0].endswith("/bash")


@pytest.mark.parametrize("change", [{"GIPFEL_ENGINE": "host"}, {"JUPYTER_RUNTIME_DIR": ""}])
def test_on_the_host_nothing_changes(
    prefix: Path, environment: dict[str, str], change: dict[str, str]
) -> None:
    environment |= change
    before = dict(environment)
    assert prepare_terminals(environment, prefix=prefix) == []
    assert environment == before


def test_a_folder_that_cant_be_written_to_is_one_line(
    prefix: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path(environment["JUPYTER_RUNTIME_DIR"]).write_text("a file\n")
    before = environment["PATH"]
    assert prepare_terminals(environment, prefix=prefix)
    assert environment["PATH"] == before
    assert len(capsys.readouterr().err.splitlines()) == 1
