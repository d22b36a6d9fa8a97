"""What every test may lean on, whoever started them."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Give back what a shell's background job or nohup ignores: tests send signals to what they start."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


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
