"""The README's shell blocks, run as a fresh user runs them: in an empty home, in a directory with ``.venv``."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 300
#: Why a block with this text is not run here.
_NOT_RUN = {
    "make up": "tests/ui/test_make_up.py runs `make up`, and this test is part of `make test`",
    "podman export": "it downloads an image of several GB",
    "pip install 'gipfel[hub]'": "it downloads packages; `runtime build` is run by tests/cluster/kept_runtime.py",
}
#: Shorter than in the README, where they take a minute and half a minute; and what a user without an image omits.
_SHORTER = {"seconds 60": "seconds 5", "sleep 30": "sleep 8", " --edf torch": ""}
#: What blocks and commands in sentences print, by a part of them.
_PRINTED = {
    "gipfel submit": "out.ipynb",
    "gipfel record": "points lost",
    "gipfel data": "mounts = [",
}
_IN_SENTENCES = {
    "gipfel ps": "No workload runs",
    "gipfel runs": "recording",
    "gipfel runs prune --keep 50": "",
    "gipfel quota": "",
    "gipfel scan ~/project": "",
    "gipfel vet cpu": "pass",
    ".venv/bin/gipfel doctor": "",
}


def _blocks() -> list[str]:
    page = (_ROOT / "README.md").read_text()
    return [textwrap.dedent(each) for each in re.findall(r"^ *```sh\n(.*?)^ *```$", page, re.S | re.M)]


def _reason(block: str) -> str:
    return next((reason for text, reason in _NOT_RUN.items() if text in block), "")


class FreshUser:
    """A shell in an empty home."""

    def __init__(self, folder: Path) -> None:
        home, self._directory = folder / "home", folder / "gipfel"
        for each in (home / "project", home / "data", self._directory):
            each.mkdir(parents=True)
        (home / "project/train.py").write_text("print('trained')\n")
        for name in ("notebooks", ".venv"):
            target = Path(sys.prefix) if name == ".venv" else _ROOT / name
            (self._directory / name).symlink_to(target)
        known = ("GIPFEL_", "SLURM_", "JUPYTER", "XDG_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(known)}
        # In JupyterLab's terminal, `gipfel` is on the PATH. Slurm of other tests may run on this machine.
        path = f"{sys.prefix}/bin:{kept.get('PATH', os.defpath)}"
        self._environment = {**kept, "HOME": str(home), "PATH": path, "GIPFEL_SCHEDULER": "local"}

    def run(self, commands: str) -> str:
        """Run commands; returns what they print, and fails at the first that fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> FreshUser:
    return FreshUser(tmp_path_factory.mktemp("readme"))


def test_each_block_that_is_not_run_is_there() -> None:
    reasons = [_reason(block) for block in _blocks()]
    assert sorted(filter(None, reasons)) == sorted(_NOT_RUN.values())


@pytest.mark.parametrize("block", [each for each in _blocks() if not _reason(each)])
def test_a_block_runs_line_by_line(user: FreshUser, block: str) -> None:
    for text, shorter in _SHORTER.items():
        block = block.replace(text, shorter)
    printed = user.run(block)
    (expected,) = (text for command, text in _PRINTED.items() if command in block)
    assert expected in printed, printed


@pytest.mark.parametrize("command", _IN_SENTENCES)
def test_a_command_in_a_sentence_runs(user: FreshUser, command: str) -> None:
    assert f"`{command}`" in (_ROOT / "README.md").read_text()
    printed = user.run(command)
    assert _IN_SENTENCES[command] in printed, printed
