"""CPU seconds of each test with those of the processes that it starts: wall time misleads on a busy machine.

``cpu_time.py run FILE ARGUMENTS…`` runs pytest and writes JSON; ``cpu_time.py show FILE…`` prints the test
files that cost most. As root, where the controller ``cpuacct`` of cgroup v1 is mounted, daemons that
outlive their parent count too; elsewhere only child processes that were waited for count. Work that several
tests share, such as a fixture, counts for the first of them.
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_GROUPS = Path("/sys/fs/cgroup/cpuacct")
_SHOWN = 40
_EXIT_LIMIT_S = 60


class CpuTime:
    """The pytest plugin."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._group: Path | None = _GROUPS / f"tests-{os.getpid()}"
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            self._group = None
        self._start = self._now(), time.monotonic()
        self._tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def _now(self) -> float:
        if self._group is None:
            return sum(os.times()[:4])
        return int((self._group / "cpuacct.usage").read_text()) / 1e9

    def pytest_collection_finish(self) -> None:
        self._tests["collection"] = [self._now() - self._start[0], time.monotonic() - self._start[1]]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        cpu, wall = self._now(), time.monotonic()
        try:
            return (yield)
        finally:
            spent = self._tests[item.nodeid]
            spent[0] += self._now() - cpu
            spent[1] += time.monotonic() - wall

    def pytest_sessionfinish(self) -> None:
        total = [round(self._now() - self._start[0], 2), round(time.monotonic() - self._start[1], 2)]
        tests = {name: [round(value, 2) for value in spent] for name, spent in self._tests.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"total": total, "tests": tests}, indent=0))

    def pytest_unconfigure(self) -> None:
        if self._group is not None:
            try:
                (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
                self._group.rmdir()
            except OSError:
                pass  # Processes that a test left running are still in the group.


def show(path: Path) -> None:
    """Print CPU seconds, wall seconds and number of tests: of the run, and of the files that cost most."""
    document = json.loads(path.read_text())
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for name, (cpu, wall) in document["tests"].items():
        spent = files[name.partition("::")[0]]
        spent[:] = [spent[0] + cpu, spent[1] + wall, spent[2] + 1]
    cpu, wall = document["total"]
    print(f"{cpu:8.1f} {wall:8.1f} {len(document['tests']):5} {path}")
    for name, (cpu, wall, count) in sorted(files.items(), key=lambda each: -each[1][0])[:_SHOWN]:
        print(f"{cpu:8.1f} {wall:8.1f} {count:5.0f}   {name}")


def main() -> int:
    """Run pytest, or show what earlier runs have written."""
    # Tests must not import this directory's modules, which Python has put first on the path.
    sys.path.pop(0)
    match sys.argv[1:]:
        case ["run", path, *arguments]:
            status = pytest.main(arguments, plugins=[CpuTime(Path(path).absolute())])
            # Python waits for all threads when it exits, also for one that a test left waiting for ever.
            end = threading.Timer(_EXIT_LIMIT_S, os._exit, [int(status)])
            end.daemon = True
            end.start()
            return status
        case ["show", *paths] if paths:
            for path in paths:
                show(Path(path))
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
