"""Built-in workloads with known load, and the import of the package."""

import subprocess
import sys

import pytest

import gipfel_widgets
from gipfel_cluster.model import GipfelError
from gipfel_widgets import run_workload


@pytest.mark.parametrize("name", ["matmul", "sleep"])
def test_it_works_for_as_long_as_asked_and_tells(name):
    lines = []
    done = run_workload(name, 1.2, lines.append)
    assert name in done
    assert lines[-1] == done
    assert any("of 1.2 s" in line for line in lines[1:-1])


def test_an_unknown_workload_is_a_sentence():
    with pytest.raises(GipfelError, match="Choose one of matmul, sleep"):
        run_workload("train", 1)


def test_every_exported_name_is_there():
    assert all(getattr(gipfel_widgets, name) is not None for name in gipfel_widgets.__all__)
    assert set(gipfel_widgets.__all__) <= set(dir(gipfel_widgets))


def test_importing_the_package_imports_nothing_heavy():
    code = "import gipfel_widgets, sys; print({'numpy', 'pyarrow', 'anywidget', 'zmq'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
