"""Everything that can be tested on this machine; what it can't run is named in the last lines."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CLUSTER = "tests/cluster"
_PROGRESS = re.compile(r"\[ *\d+%\]$")
_END_LIMIT_S = 120


class Half:
    """One pytest run beside the other: they wait for Slurm, browsers and time-outs more than they compute."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.name = name
        argv = [sys.executable, "-m", "pytest", "-q", "--color=no", "--durations=15", *arguments]
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
        """Its exit status."""
        status = self._process.wait()
        self._reader.join()
        return status

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
        sys.stdout.writelines(line for line in self._lines if not _PROGRESS.search(line.rstrip()))
        sys.stdout.flush()


def _both(environment: dict[str, str]) -> int:
    halves = [
        Half("cluster", [CLUSTER], environment),
        Half("others", ["tests", f"--ignore={CLUSTER}"], environment),
    ]
    try:
        statuses = []
        for half in halves:
            statuses.append(half.wait())
            half.say()
    except KeyboardInterrupt:
        for half in halves:
            half.interrupt()
            half.say()
        statuses = [130]
    # A run that was killed has a negative status.
    return next((status for status in statuses if status), 0)


def main() -> int:
    """Style and types first, since they are quick; then the tests, and what was skipped last."""
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    steps = (
        ([str(BIN / "ruff"), "check", "."], ROOT),
        ([str(BIN / "ruff"), "format", "--check", "-q", "."], ROOT),
        ([str(BIN / "mypy")], ROOT),
        (["jlpm", "lint:check"], ROOT / "extension"),
    )
    for argv, folder in steps:
        print("::", " ".join(argv), flush=True)
        status = subprocess.run(
            argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False
        ).returncode
        if status:
            return status
    if not sys.argv[1:]:
        return _both(environment)
    pytest = [sys.executable, "-m", "pytest", "-q", *sys.argv[1:]]
    return subprocess.run(pytest, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


sys.exit(main())
