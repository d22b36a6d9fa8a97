"""Check that each layer imports only lower ones, by importing it with the others blocked."""

import subprocess
import sys

import pytest

_PROBE = """
import importlib, importlib.abc, pkgutil, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {blocked!r}):
            raise ImportError("above this floor: " + name)

sys.meta_path.insert(0, Blocked())
for root in {roots!r}:
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print("imported")
"""

_HUB = {"jupyterhub", "batchspawner"}
_SERVER = {"jupyter_server", "jupyterlab", "tornado"}
#: What every package of the notebook-server side that routes and server use must do without.
_ABOVE = {
    "gipfel_spawner",
    "gipfel_widgets",
    "gipfel_extension.app",
    "gipfel_extension.routes",
    "gipfel_extension.server",
    *_HUB,
    *_SERVER,
    "ipywidgets",
    "torch",
}

FLOORS = {
    "a cluster": (
        ["gipfel_cluster"],
        {
            "gipfel_spawner",
            "gipfel_extension",
            "gipfel_widgets",
            *_HUB,
            *_SERVER,
            "ipywidgets",
            "IPython",
            "zmq",
            "torch",
        },
    ),
    "telemetry": (
        [
            "gipfel_extension.telemetry",
            "gipfel_extension.saturation",
            "gipfel_extension.diagnosis",
            "gipfel_extension.recorder",
            "gipfel_extension.storage",
            "gipfel_extension.network",
            "gipfel_extension.tracking",
            "gipfel_extension.topology.collect",
        ],
        {
            "gipfel_spawner",
            "gipfel_widgets",
            # Of gipfel_cluster, only modules that need no more than the standard library.
            "pydantic",
            *_HUB,
            *_SERVER,
            "ipywidgets",
            "torch",
        },
    ),
    # Papermill's kernel client brings tornado along.
    "training": (
        ["gipfel_extension.training"],
        {"gipfel_spawner", "gipfel_widgets", *_HUB, "jupyter_server", "jupyterlab", "torch"},
    ),
    "vetting": (
        ["gipfel_extension.vetting"],
        _ABOVE | {"gipfel_extension.training", "gipfel_extension.registry"},
    ),
    "data": (
        ["gipfel_extension.data"],
        _ABOVE | {"gipfel_extension.training", "gipfel_extension.vetting"},
    ),
    "the doctor": (
        ["gipfel_extension.doctor"],
        _ABOVE,
    ),
    "the gate": (
        ["gipfel_extension.gate"],
        _ABOVE | {"gipfel_extension.training", "numpy"},
    ),
    "rules": (
        ["gipfel_extension.rules"],
        _ABOVE | {"gipfel_extension.vetting"},
    ),
    "services": (
        ["gipfel_extension.services"],
        _ABOVE | {"gipfel_extension.training", "numpy"},
    ),
    "the registry": (
        ["gipfel_extension.registry"],
        {
            "gipfel_spawner",
            "gipfel_widgets",
            "gipfel_extension.app",
            "gipfel_extension.routes",
            "gipfel_extension.server",
            "gipfel_extension.training",
            "jupyter_server",
            "jupyterlab",
            "ipywidgets",
            "torch",
        },
    ),
    "the hub": (
        ["gipfel_spawner"],
        {"gipfel_extension", "gipfel_widgets", "jupyter_server", "ipywidgets", "torch"},
    ),
    "the kernel": (
        ["gipfel_widgets"],
        {"gipfel_spawner", "gipfel_extension.app", "gipfel_extension.routes", *_HUB, "jupyter_server"},
    ),
}


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_imports_only_what_is_below_it(floor):
    roots, blocked = FLOORS[floor]
    probe = _PROBE.format(roots=roots, blocked=blocked)
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "imported", done.stderr[-2000:]


def test_a_blocked_import_is_noticed():
    probe = _PROBE.format(roots=["gipfel_spawner"], blocked={"batchspawner"})
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=False
    )
    assert "above this floor: batchspawner" in done.stderr


@pytest.mark.parametrize("package", ["gipfel_extension", "gipfel_widgets", "gipfel_cluster"])
def test_importing_a_package_starts_nothing(package):
    probe = (
        f"import sys, threading, {package};"
        "print(threading.active_count(), 'pynvml' in sys.modules, 'tornado' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split()[:2] == ["1", "False"]


def test_no_start_of_a_server_builds_parsers_of_unused_formats():
    probe = "import sys, jsonschema; print('rfc3987_syntax' in sys.modules, 'lark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "False"], "jsonschema is slow: see pyproject.toml"


def test_batchspawners_handler_is_gone_and_ours_is_there():
    probe = (
        "import gipfel_spawner; from jupyterhub.apihandlers import default_handlers as h;"
        "print([f'{each[0]} {each[1].__module__}' for each in h])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert "batchspawner.api" not in done.stdout
    assert "'/api/batchspawner gipfel_spawner.handlers.own_server'" in done.stdout
    assert "'/api/gipfel/server gipfel_spawner.handlers.own_server'" in done.stdout
