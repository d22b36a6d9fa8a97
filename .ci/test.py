"""Everything that can be tested on this machine; what it can't run is named in the last lines."""

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
#: Tests of `tests/cluster` that use neither its hub nor what others do in its Slurm.
APART = tuple(
    f"tests/cluster/test_{name}.py"
    for name in (
        "clusters", "engines_hardware", "engines_run", "faults",
        "image_build", "image_build_end", "kernels", "many", "node_lost", "stage", "vetting",
    )
)  # fmt: skip
#: What runs beside the rest, in groups that take about as long: each waits for Slurm, browsers and time-outs
#: more than it computes.
BESIDE = {
    "cluster": ("tests/cluster", *(f"--ignore={path}" for path in APART)),
    "pages": ("tests/ui", "tests/notebooks"),
    "hub": ("tests/spawner", "tests/documentation"),
    "apart": (*APART, "tests/widgets"),
}
STYLE = (
    ([str(BIN / "ruff"), "check", "."], ROOT),
    ([str(BIN / "ruff"), "format", "--check", "-q", "."], ROOT),
    ([str(BIN / "mypy")], ROOT),
    (["jlpm", "lint:check"], ROOT / "extension"),
    (["jlpm", "test"], ROOT / "extension"),
)
_PROGRESS = re.compile(r"\[ *\d+%\]$")
_END_LIMIT_S = 120
#: Time limit of the parts together, and of what runs again: a run of 90 minutes has room for both.
_LIMIT_S = 65 * 60
_LAST_LINES_S = 20
#: More failing files than this are not explained by a busy machine.
_MAX_AGAIN = 8
#: Of the files that pass only alone, at most this many may be missing from the list of known ones.
_MAX_NEW = 3
#: Test files known to fail beside others and to pass alone, one pattern per line; ``#`` begins a comment.
_KNOWN_UNSTEADY = ROOT / ".ci" / "unsteady.txt"


class Style:
    """Linters, types and the TypeScript tests, one after the other, beside the parts."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._said = ""
        self._status = 0
        self._running: subprocess.Popen[str] | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for argv, folder in STYLE:
            if self._stopped:
                return
            self._running = subprocess.Popen(
                argv, cwd=folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
            said, _ = self._running.communicate()
            status = self._running.returncode
            self._said += f":: {' '.join(argv)}\n{said if status else ''}"
            self._status = self._status or status

    def wait(self) -> int:
        """Print what failed; returns the first exit status that is not 0."""
        self._thread.join()
        print(self._said, end="", flush=True)
        return self._status

    def interrupt(self) -> None:
        """End what is running and start nothing more."""
        self._stopped = True
        if self._running is not None:
            self._running.terminate()


class Part:
    """One pytest run beside the others."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._cache = ROOT / "build" / f"tests-{name}"
        shutil.rmtree(self._cache, ignore_errors=True)
        # What each test costs: `.ci/cpu_time.py show build/tests-*.json` says what to share or to drop next.
        counted = [sys.executable, str(ROOT / ".ci/cpu_time.py"), "run", f"{self._cache}.json"]
        argv = [*counted, "-q", "--color=no", "-o", f"cache_dir={self._cache}", *arguments]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.append(line)
            if _PROGRESS.search(line.rstrip()):
                print(f"{self.name:8}{line}", end="", flush=True)

    def wait(self) -> int:
        """Its exit status; not 0 where it took longer than `_LIMIT_S` and was interrupted."""
        try:
            status = self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f":: {self.name} took more than {_LIMIT_S // 60} minutes: interrupted", flush=True)
            self.interrupt()
            status = self._process.wait() or 1
        # Not longer: a process that a test left behind may hold the pipe open.
        self._reader.join(_LAST_LINES_S)
        if self._reader.is_alive():
            print(f":: {self.name} left a process that holds its output open", flush=True)
        return status

    def failed(self) -> list[str]:
        """The names of the tests that failed, as pytest has written them down."""
        try:
            names = json.loads((self._cache / "v/cache/lastfailed").read_bytes())
        except (OSError, ValueError):
            return []
        return sorted(names)

    def interrupt(self) -> None:
        """Let it put its parts away, as on Ctrl-C."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def say(self) -> None:
        """Print what it said beside its progress: failures, durations, what was skipped."""
        print(f":: {self.name}", flush=True)
        sys.stdout.writelines(line for line in list(self._lines) if not _PROGRESS.search(line.rstrip()))
        sys.stdout.flush()


def _all(environment: dict[str, str]) -> int:
    parts = [Part(name, list(arguments), environment) for name, arguments in BESIDE.items()]
    parts.append(Part("others", _others(), environment))
    style = Style(environment)
    try:
        statuses = []
        for part in parts:
            statuses.append(part.wait())
            part.say()
        if status := style.wait():
            return status
        failed = [name for part in parts for name in part.failed()]
        # Status 1: some tests failed. Any other is no matter of tests.
        if set(statuses) <= {0, 1} and failed:
            return _alone(failed, environment)
    except KeyboardInterrupt:
        style.interrupt()
        for part in parts:
            part.interrupt()
            part.say()
        statuses = [130]
    # A run that was killed has a negative status.
    return next((status for status in statuses if status), 0)


def _others() -> list[str]:
    """Return pytest's arguments for all tests that no part of `BESIDE` has."""
    apart = {each for arguments in BESIDE.values() for each in arguments if not each.startswith("--")}
    return ["tests", *(f"--ignore={path}" for path in sorted(apart - set(APART)))]


def _alone(failed: list[str], environment: dict[str, str]) -> int:
    """Run the files of failed tests again, with the machine to themselves.

    The parts share two cores, so a wait may run out for no other reason. What fails alone too has failed.
    Files whose failures pass alone are expected in ``.ci/unsteady.txt``: others are named in the output, and
    fail the run if they are more than a busy machine explains. ``build/unsteady.txt`` gets all of them.
    """
    files = sorted({name.partition("::")[0] for name in failed})
    if len(files) > _MAX_AGAIN:
        print(f":: {len(files)} files have failures: more than {_MAX_AGAIN} are not run again", flush=True)
        return 1
    print(":: again, alone:", *files, flush=True)
    part = Part("alone", files, environment)
    try:
        status = part.wait()
    except KeyboardInterrupt:
        part.interrupt()
        status = 130
    part.say()
    return status or _unsteady(failed, files)


def _unsteady(failed: list[str], files: list[str]) -> int:
    """Report what passed only alone; exit status 1 where too many files are not yet known for it."""
    (ROOT / "build" / "unsteady.txt").write_text("".join(f"{name}\n" for name in files))
    print(f":: {len(failed)} tests failed beside others and passed alone:", *failed, sep="\n   ", flush=True)
    lines = [line.partition("#")[0].strip() for line in _KNOWN_UNSTEADY.read_text().splitlines()]
    new = [file for file in files if not any(fnmatch.fnmatch(file, known) for known in lines if known)]
    if new:
        print(
            f":: new among them: {' '.join(new)}. Make them steady, or list them in "
            f"{_KNOWN_UNSTEADY.relative_to(ROOT)} with the reason.",
            flush=True,
        )
    return 1 if len(new) > _MAX_NEW else 0


def main() -> int:
    """Run all tests beside linters and types, or those that arguments name; what was skipped comes last."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    # Every process that a test starts would compile the packages again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if not sys.argv[1:]:
        return _all(environment)
    pytest = [sys.executable, "-m", "pytest", "-q", *sys.argv[1:]]
    return subprocess.run(pytest, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


sys.exit(main())
