"""Papermill's own tests, run with this engine in place of papermill's."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Tests that can't pass with another engine, or on this machine.
OTHERWISE = (
    # These replace papermill's own client by a mock, and look at its arguments.
    "test_execute.py::TestNotebookHelpers::test_start_timeout",
    "test_execute.py::TestNotebookHelpers::test_default_start_timeout",
    # This one replaces the function by which papermill's own engine saves, and counts its calls.
    "test_autosave.py::TestMidCellAutosave::test_end2end_autosave_slow_notebook",
    # Its notebook imports a name that IPython 9 has removed; with papermill's own engine it fails, too.
    "test_execute.py::TestBrokenNotebook2::test",
)
#: Modules on storage in clouds, whose packages are not installed; none runs a notebook.
CLOUDS = ("test_abs.py", "test_adl.py", "test_gcs.py", "test_hdfs.py", "test_s3.py")


def test_papermills_own_tests_pass(tmp_path: Path) -> None:
    found = importlib.util.find_spec("papermill.tests")
    if found is None or not found.origin:
        pytest.skip("this papermill was installed without its tests")
    folder = Path(found.origin).parent
    modules = sorted(str(path) for path in folder.glob("test_*.py") if path.name not in CLOUDS)
    # Python imports it at its start, also in papermill's command, which some of the tests run, but not in kernels.
    hook = "import sys\nif {'papermill', 'pytest'} & set(sys.orig_argv):\n    import own_engine\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{HERE}"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    argv += ["--rootdir", str(folder), *modules, *(f"--deselect={name}" for name in OTHERWISE)]
    done = subprocess.run(
        argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) passed.*?(\d+) deselected", done.stdout)
    assert counted
    assert int(counted[1]) > 400
    assert int(counted[2]) == len(OTHERWISE)
