"""State that a forked program inherits, and conditions for a fork; each in a process with one thread."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_FORKS = """
import json, os, signal, sys, threading
from gipfel_cluster.process.fork import ForkedProgram, allow_forks, can_fork
before = can_fork()
allow_forks()
alone = can_fork()
signal.signal(signal.SIGTERM, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.environ["MINE"] = "x"

def main():
    said = sys.stdin.read()
    left = {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGTERM", "SIGINT")}
    blocked = len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    print(json.dumps([said, dict(os.environ), sys.path, sys.argv, left, blocked, os.getcwd()]))

forked = ForkedProgram(("program", "word"), main, {"YOURS": "y"}, output="capture")
answer = json.loads(forked.communicate(b"question", 20))

def fails():
    raise ValueError("wrong")

failed = ForkedProgram(("program",), fails, {}).wait(20)
def shows():
    left = open("/proc/self/environ").read().strip("\\0")
    print(open("/proc/self/cmdline").read(), os.environ["FILL"], "full" * 1000 in left, end="")

named = [
    ForkedProgram(words, shows, {"FILL": "full"}, output="capture").communicate(b"", 20).decode()
    for words in (["python", "-m", "short"], ["python", "-m", "long" * 1000])
]
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(json.dumps([before, alone, can_fork(), failed, *answer]))
print(json.dumps(named))
"""


def test_a_forked_program_inherits_only_imported_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        # Without an input of its own: the descriptor that the program reads is not there yet.
        ["/bin/sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, _FORKS],
        env={"PATH": os.defpath, "PYTHONPATH": str(tmp_path), "FILL": "full" * 1000},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    before, alone, beside_another, failed, said, variables, path, argv, left, blocked, folder = first
    assert (before, alone, beside_another) == (False, True, False)
    assert (said, variables, argv, folder) == ("question", {"YOURS": "y"}, ["program"], "/")
    assert not {"", str(tmp_path)} & set(path)
    assert any(each.endswith("site-packages") for each in path)
    assert "default_int_handler" in left["SIGINT"]
    assert (left["SIGTERM"], blocked) == (str(0), 0)
    assert failed == 1
    assert "ValueError: wrong" in done.stderr
    assert [each.replace("\0", " ").split() for each in second] == [
        ["python", "-m", "short", "full", "False"],
        ["python", "-m", "long" * 1000, "full", "False"],
    ]


_LOADS = """
import json, os, sys
from gipfel_cluster.process.fork import allow_forks
from gipfel_cluster.process.fork import PreloadedProgram
home = sys.argv[1]
sys.path.append(home)
argv = [sys.executable, "-I", "-m", sys.argv[2], "word"]
assert PreloadedProgram.for_command(argv) is None
allow_forks()
assert PreloadedProgram.for_command(["/usr/bin/true", *argv[1:]]) is None
assert PreloadedProgram.for_command(["sh", "-c", "true"]) is None
sys.forked = "forked"
assert PreloadedProgram.for_command(argv).run([*argv, "more"], {}, home) is None
assert PreloadedProgram.for_command(argv).run(["/usr/bin/nice", "--adjustment=1", *argv], {}, home) is None
for enter in ([], ["/usr/bin/env", f"--chdir={home}/in"]):
    program = PreloadedProgram.for_command(argv).run([*enter, *argv], {"YOURS": "y"}, home)
    print(program.wait(20), program.poll(), flush=True)
"""


@pytest.mark.parametrize("module", ["program", "program.__main__"])
def test_a_preloaded_program_runs_like_a_new_process(tmp_path: Path, module: str) -> None:
    package = tmp_path / "program"
    package.mkdir()
    (tmp_path / "in").mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, sys\nshown = lambda: (dict(os.environ), os.getcwd())\nif __name__ == '__main__':\n"
        "    print(sys.forked, sys.argv[1:], *shown(), repr(sys.stdin.read()), flush=True)\n"
        "    sys.exit(5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _LOADS, str(tmp_path), module],
        env={"PATH": os.defpath}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    told = "forked ['word'] {{'YOURS': 'y'}} {} ''"
    assert done.stdout.splitlines() == [
        told.format(tmp_path), "5 5", told.format(tmp_path / "in"), "5 5",
    ]  # fmt: skip
