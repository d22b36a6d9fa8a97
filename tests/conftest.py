"""Environment of all tests, independent of the caller, and the marker of tests that ``make quick`` omits."""

import gc
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

_HERE = Path(__file__).parent
#: Folders whose tests need Slurm, a browser, kernels or a GPU.
_INTEGRATION_FOLDERS = {"cluster", "ui", "notebooks", "gpu"}
#: Markers of tests elsewhere that need the same.
_INTEGRATION_MARKERS = ("cluster", "browser", "gpu")
#: Fixtures that start a hub, a notebook server, a database, a browser or a kernel, or build a runtime.
_INTEGRATION_FIXTURES = {
    "browser", "database", "hub", "kernel", "kernels", "new_hub", "page", "postgres", "prometheus", "proxy",
    "runtime", "server", "slurm_hub", "start_server",
}  # fmt: skip
#: Modules beside the tests that start a hub or containers.
_INTEGRATION_MODULES = {"broker_jobs", "bubblewrap_sandboxes", "hub_process", "hub_servers", "postgres"}


def pytest_configure() -> None:
    """Give back what a shell's background job or nohup ignores: tests send signals to what they start."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``integration`` what starts servers or containers, and what was measured to be slow."""
    slow = slow_tests()
    for item in items:
        if _is_integration(item) or item.nodeid.partition("[")[0] in slow:
            item.add_marker("integration")


def pytest_collection_finish() -> None:
    """Leave modules and tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()


def slow_tests() -> set[str]:
    """Return the tests in ``slow.txt``, as ``tests/<folder>/<file>.py::<test>``."""
    lines = (_HERE / "slow.txt").read_text().splitlines()
    return {line.partition("#")[0].strip() for line in lines} - {""}


def _is_integration(item: pytest.Item) -> bool:
    folder = item.path.relative_to(_HERE).parts[0]
    fixtures = set(getattr(item, "fixturenames", ()))
    imported = _imported_modules(getattr(item, "module", None))
    return bool(
        folder in _INTEGRATION_FOLDERS
        or any(item.get_closest_marker(name) for name in _INTEGRATION_MARKERS)
        or fixtures & _INTEGRATION_FIXTURES
        or imported & _INTEGRATION_MODULES
    )


@cache
def _imported_modules(module: ModuleType | None) -> frozenset[str]:
    """Return the names of the modules that a test module imports, or imports something of."""
    values = vars(module).values() if module else ()
    return frozenset(
        value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        for value in values
    )


def _process_wide() -> dict[str, object]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    handlers = {number.name: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {"umask": status["Umask"].strip(), "working directory": Path.cwd(), **handlers}


@pytest.fixture(autouse=True)
def _whole_process() -> Iterator[None]:
    """Fail a test that leaves its umask, directory or signal handlers to the tests after it."""
    before = _process_wide()
    yield
    after = _process_wide()
    assert after == before
