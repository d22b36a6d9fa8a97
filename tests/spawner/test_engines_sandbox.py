"""Start of the sandbox: the modules that it imports, and its plan."""

import importlib
import json
import subprocess
import sys

import pytest

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import ContainerRequest
from gipfel_cluster.engines.bubblewrap import Bubblewrap
from gipfel_cluster.engines.sandbox.plan import ContainerPlan, DriverFile, PlannedMount, read_json

#: In C, or in the interpreter itself, or so small that they are there in less than half a millisecond.
QUICK = {
    *("_stat", "_ctypes", "select", "_signal", "time", "pwd", "grp", "_json", "errno"),
}
OURS = {
    *("gipfel_cluster", "gipfel_cluster.environment", "gipfel_cluster.namespaces", "gipfel_cluster.engines"),
    *(
        f"gipfel_cluster.engines.sandbox{name}"
        for name in (
            *("", ".assemble", ".container", ".command", ".paths", ".plan"),
            *(".rootfs", ".squashfs", ".supervise"),
        )
    ),
}
PLAN = ContainerPlan(
    image="/i",
    command=("sh", "-c", '"ü€𝄞\udcff\n\\'),
    scratch="/s",
    squashfuse="",
    program="/usr/bin/bwrap",
    mounts=(PlannedMount("/a", "/b", read_only=True), PlannedMount("/c.sqsh", "/d", squashfs=True)),
    env={"A": "", "B": "=\t"},
    driver=(DriverFile("/x", links=("y", "z")),),
    devices=(PlannedMount("/dev/null", "/dev/null"),),
)


def imported(*words: str, **options: object) -> set[str]:
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=True, **options)  # type: ignore[call-overload]
    lines = [
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    ]
    assert lines
    return set(lines) - {"imported package"}


@pytest.mark.skipif(
    Bubblewrap().unavailable_reason() is not None, reason=str(Bubblewrap().unavailable_reason())
)
def test_a_container_starts_without_slow_imports(tmp_path):
    (tmp_path / "image/usr/bin").mkdir(parents=True)
    edf = Edf(
        name="x",
        path=None,
        image=str(tmp_path / "image"),
        env={"A": "b"},
        mounts=({"source": "/usr", "destination": "/usr"}, *_links()),
    )
    request = ContainerRequest(
        edf=edf, command=("/usr/bin/true",), environment={"HOME": "/root"}, scratch=str(tmp_path)
    )
    show = ("-X", "importtime")
    invocation = Bubblewrap().render(request, python=(sys.executable, *show))
    found = imported(*invocation.argv, env=dict(invocation.environment))
    assert found - imported(sys.executable, "-I", "-S", *show, "-c", "pass") <= QUICK | OURS
    assert found >= OURS


def _links() -> tuple[dict[str, str], ...]:
    return tuple({"source": path, "destination": path} for path in ("/lib", "/lib64"))


def test_a_plan_is_read_as_it_was_written():
    assert ContainerPlan.from_json(PLAN.to_json()) == PLAN
    assert ContainerPlan.from_json(PLAN.to_json()) != ContainerPlan(**{**vars(PLAN), "image": "/other"})
    assert ContainerPlan.from_json(ContainerPlan(**{**vars(PLAN), "devices": None}).to_json()).devices is None


def test_a_python_without_the_reader_in_c_reads_the_same(monkeypatch):
    quick = read_json(PLAN.to_json())
    monkeypatch.setitem(sys.modules, "_json", None)
    slow = importlib.import_module("gipfel_cluster.engines.sandbox.plan").read_json(PLAN.to_json())
    assert quick == slow == json.loads(PLAN.to_json())
