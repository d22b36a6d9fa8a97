"""A Python of an image that hangs, floods, prints invalid output or leaves processes behind."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from gipfel_cluster.runtime.kernels import VERSIONS
from gipfel_cluster.runtime.start import SUPPORTED
from gipfel_extension.kernels import check_python

LIMIT_S = 3.0
USABLE = json.dumps({"version": "3.12", "problem": ""})


def python(folder: Path, body: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "version", "problem"),
    [
        ("sleep 600", "?", "The image's {python} does not answer within 3 s."),
        ("trap '' TERM INT HUP; sleep 600 & wait; sleep 600", "?", "does not answer within 3 s."),
        ("exec yes", "?", "The image's {python} does not run."),
        ("echo '{'; echo hello", "?", "The image's {python} does not run."),
        ("echo", "?", "The image's {python} does not run."),
        ("printf '\\377\\376'", "?", "The image's {python} does not run."),
        ("echo 3.6", "3.6", "is too old for the runtime's kernels."),
        ("[ \"$1\" = -c ] && echo 3.12 && exit; exit 1", "3.12", "is broken: `{python} {start} --check` "),
        ("echo '{\"version\": 1}'", "?", "does not run."),
    ],
)  # fmt: skip
def test_any_failing_python_is_reported_in_one_line_in_time(
    tmp_path: Path, body: str, version: str, problem: str
) -> None:
    start, before = tmp_path / "start.py", time.monotonic()
    path = python(tmp_path, body)
    found = check_python(path, start, limit=LIMIT_S)
    assert time.monotonic() - before < LIMIT_S + 2
    assert found.version == version
    assert problem.format(python=path, start=start) in found.problem
    assert len(found.problem.splitlines()) == 1


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_child_processes_neither_delay_the_check_nor_survive_it(tmp_path: Path) -> None:
    left = tmp_path / "left"
    path = python(tmp_path, f"sleep 600 & echo $! > {left}; echo '{USABLE}'")
    before = time.monotonic()
    found = check_python(path, tmp_path / "start.py")
    assert time.monotonic() - before < LIMIT_S
    assert (found.version, found.problem) == ("3.12", "")
    # A signal takes a moment to end a process.
    end = time.monotonic() + 10
    while _lives(int(left.read_text())):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_missing_library_is_reported_before_the_kernel_is_offered(tmp_path: Path) -> None:
    # As an import fails where the image's glibc or libstdc++ is older than what the packages need.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / f"lib/python{version}/site-packages"
    packages.mkdir(parents=True)
    own = Path(sys.prefix, "lib", f"python{version}", "site-packages")
    for each in own.iterdir():
        if each.name != "zmq":
            (packages / each.name).symlink_to(each)
    (packages / "zmq").mkdir()
    (packages / "zmq/__init__.py").write_text("raise ImportError('libstdc++.so.6: cannot open\\n shared')\n")
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    source = Path(__file__).parents[2] / "spawner/gipfel_cluster/runtime/start.py"
    (kernels / "start.py").write_text(source.read_text())
    base = getattr(sys, "_base_executable", sys.executable)
    found = check_python(python(tmp_path, f'exec {os.fspath(base)} -S "$@"'), kernels / "start.py")
    assert found.version == version
    assert "can't start a kernel: ImportError: libstdc++.so.6: cannot open shared" in found.problem


def test_what_the_start_file_promises_is_what_a_build_has() -> None:
    assert [".".join(str(part) for part in each) for each in SUPPORTED] == [VERSIONS[0], VERSIONS[-1]]
