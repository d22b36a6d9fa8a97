"""JupyterHub's own tests of spawners and of named servers, run with this spawner."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
#: Intended differences of this spawner.
OTHERWISE = {
    # A server tells its port with its token: one that the hub does not know is refused before.
    "test_spawner": ("test_spawner_insert_api_token", "test_spawner_bad_api_token"),
    # Unknown options are refused.
    "test_named_servers": ("test_named_server_create_server",),
}


def _end_all(folder: str) -> None:
    """Kill the processes whose environment names this folder."""
    found = []
    for process in psutil.process_iter():
        # Others' processes, and those that end meanwhile.
        with contextlib.suppress(psutil.Error):
            if process.environ().get("GIPFEL_OWN_TESTS") == folder:
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=10)


@pytest.mark.parametrize("module", ["test_spawner", "test_named_servers"])
def test_jupyterhubs_own_tests_pass(module: str, tmp_path: Path, proxy: str) -> None:
    for package in ("jupyterhub.tests", "pytest_asyncio"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    tests = importlib.util.find_spec(f"jupyterhub.tests.{module}")
    assert tests
    assert tests.origin
    environment = {
        **os.environ,
        "GIPFEL_OWN_TESTS": str(tmp_path),
        "PATH": f"{Path(proxy).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(HERE),
    }
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "own_tests_plugin", "-p", "no:cacheprovider"]
    argv += ["-c", os.devnull, "--rootdir", str(tmp_path), "-o", "asyncio_mode=auto", tests.origin]
    argv += [
        "-o",
        "asyncio_default_fixture_loop_scope=module",
        "-o",
        "asyncio_default_test_loop_scope=module",
    ]
    others = [f"not ({name} and not {name}_)" for name in OTHERWISE[module]]
    argv += ["-k", " and ".join(others)]
    try:
        done = subprocess.run(
            argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    finally:
        # Some of these tests end with a server that is running.
        _end_all(environment["GIPFEL_OWN_TESTS"])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 25
