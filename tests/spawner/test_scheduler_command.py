import asyncio
import os
import resource
import sys
import time

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import CommandResult, run_command


def run(code: str, *, given: str = "", limit: float = 20, max_bytes: int = 4 << 20) -> CommandResult:
    argv = (sys.executable, "-I", "-c", code)
    return asyncio.run(
        run_command(argv, environment=dict(os.environ), limit=limit, stdin=given, max_bytes=max_bytes)
    )


def test_standard_input_and_exit_code() -> None:
    text = "ü" * 500_000
    result = run(
        "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data); sys.exit(3)", given=text
    )
    assert (result.code, result.output, result.errors) == (3, text, "")


def test_a_command_may_ignore_its_input() -> None:
    assert run("print(1)", given="x" * 1_000_000).output == "1\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_command_that_prints_without_end_is_killed(stream: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    with pytest.raises(GipfelError, match="printed more than 4194304 bytes and was killed"):
        run(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)")
    assert time.monotonic() - start < 15
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_output_of_exactly_the_limit_is_returned() -> None:
    assert run("print('x' * 99)", max_bytes=100).output == "x" * 99 + "\n"
    with pytest.raises(GipfelError, match="more than 100 bytes"):
        run("print('x' * 100)", max_bytes=100)


def test_a_command_that_takes_too_long_is_killed() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        run("import time; print('x' * 60000, flush=True); time.sleep(60)", limit=1)
    assert time.monotonic() - start < 5
