"""What a forked program has of its parent, and when there may be one; each in a process of one thread."""

import json
import os
import subprocess
import sys
from pathlib import Path

_FORKS = """
import json, os, signal, sys, threading
from gipfel_cluster.forking import ForkedProgram, allow_forks, can_fork
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

forked = ForkedProgram(("program", "word"), main, {"YOURS": "y"}, answers=True)
answer = json.loads(forked.answer_to(b"question", 20))

def fails():
    raise ValueError("wrong")

failed = ForkedProgram(("program",), fails, {}).wait(20)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(json.dumps([before, alone, can_fork(), failed, *answer]))
"""


def test_a_forked_program_has_nothing_of_its_parent_but_its_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        # Without an input of its own: the descriptor that the program reads is not there yet.
        ["/bin/sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, _FORKS],
        env={"PATH": os.defpath, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, alone, beside_another, failed, said, variables, path, argv, left, blocked, folder = json.loads(
        done.stdout
    )
    assert (before, alone, beside_another) == (False, True, False)
    assert (said, variables, argv, folder) == ("question", {"YOURS": "y"}, ["program"], "/")
    assert not {"", str(tmp_path)} & set(path)
    assert any(each.endswith("site-packages") for each in path)
    assert "default_int_handler" in left["SIGINT"]
    assert (left["SIGTERM"], blocked) == (str(0), 0)
    assert failed == 1
    assert "ValueError: wrong" in done.stderr
