"""The command and the environment's PATH in the terminals of a server."""

import os
import pty
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gipfel_extension.cli.completion import prepare_terminals


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A runtime with the command and a Python beside it."""
    (tmp_path / "runtime/bin").mkdir(parents=True)
    for name in ("gipfel", "python3"):
        program = tmp_path / "runtime/bin" / name
        program.write_text(f"#!/bin/sh\necho {name} of the runtime\n")
        program.chmod(0o755)
    return tmp_path / "runtime"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = f"{tmp_path}/image:/usr/bin:/bin"
    return {"GIPFEL_ENGINE": "bubblewrap", "JUPYTER_RUNTIME_DIR": str(tmp_path / "j"), "PATH": path}


def shell_command(arguments: list[str]) -> list[str]:
    (argument,) = arguments
    name, _, command = argument.partition("=shell_command=")
    assert name == "--ServerApp.terminado_settings"
    return shlex.split(command)


def test_the_command_is_found_last_and_nothing_else_of_the_runtime(
    prefix: Path, environment: dict[str, str]
) -> None:
    before = environment["PATH"]
    arguments = prepare_terminals(environment, prefix=prefix)
    assert environment["PATH"] == f"{before}:{environment['JUPYTER_RUNTIME_DIR']}/bin"
    said = subprocess.run(["gipfel"], env=environment, capture_output=True, text=True, check=True).stdout
    assert said == "gipfel of the runtime\n"
    assert os.listdir(environment["PATH"].rpartition(":")[2]) == ["gipfel"]
    # A login shell would set PATH to its own list.
    shell, option, *_ = shell_command(arguments)
    assert (shell, option) == (shutil.which("bash"), "-c")


def test_an_images_own_command_stays_and_so_does_the_users_shell(
    tmp_path: Path, prefix: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "image").mkdir()
    shutil.copy(prefix / "bin/gipfel", tmp_path / "image/gipfel")
    before = environment["PATH"]
    for shell, found in (("/bin/sh", "/bin/sh"), ("/nowhere/zsh", shutil.which("bash"))):
        words = shell_command(prepare_terminals(environment | {"SHELL": shell}, prefix=prefix))
        assert words[0] == words[3] == found
    assert environment["PATH"] == before


def test_without_a_private_folder_nothing_changes_in_a_container(
    prefix: Path, environment: dict[str, str]
) -> None:
    environment["JUPYTER_RUNTIME_DIR"] = ""
    before = dict(environment)
    assert prepare_terminals(environment, prefix=prefix) == []
    assert environment == before


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_on_the_host_the_command_is_found_behind_what_a_login_shell_makes_of_path(
    tmp_path: Path, prefix: Path, environment: dict[str, str], shell: str
) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / ".profile").write_text("PATH=/usr/bin:/bin\nMINE=1; export MINE\n")
    (tmp_path / "image").mkdir()
    environment |= {"GIPFEL_ENGINE": "host", "HOME": str(tmp_path), "SHELL": shell}
    words = shell_command(prepare_terminals(environment, prefix=prefix))
    # For what kernels start.
    assert environment["PATH"].endswith(f":{prefix}/bin")

    def typed() -> list[str]:
        return subprocess.run(
            words, env=environment, input="echo $MINE; echo $PATH; gipfel", capture_output=True, text=True,
            timeout=60, check=True,
        ).stdout.splitlines()  # fmt: skip

    hint, *lines = typed()
    assert "gipfel doctor" in hint
    assert lines == ["1", f"/usr/bin:/bin:{prefix}/bin", "gipfel of the runtime"]
    # The hint is for the first terminal.
    assert typed() == lines


def test_on_the_host_other_shells_start_as_jupyter_starts_them(
    tmp_path: Path, prefix: Path, environment: dict[str, str]
) -> None:
    fish = tmp_path / "image/fish"
    fish.parent.mkdir()
    fish.write_text("#!/bin/sh\n")
    fish.chmod(0o755)
    environment |= {"GIPFEL_ENGINE": "host", "SHELL": str(fish)}
    assert prepare_terminals(environment, prefix=prefix) == []
    assert environment["PATH"].endswith(f":{prefix}/bin")
    before = dict(environment)
    assert prepare_terminals(environment, prefix=tmp_path / "none") == []
    assert environment == before


def test_a_folder_that_cant_be_written_to_is_one_line(
    prefix: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path(environment["JUPYTER_RUNTIME_DIR"]).write_text("a file\n")
    before = environment["PATH"]
    assert prepare_terminals(environment, prefix=prefix)
    assert environment["PATH"] == before
    assert len(capsys.readouterr().err.splitlines()) == 1


_ZSH = """
compdef() { : }
_describe() { print -l -- $completions_with_descriptions; }
source "$1"
words=(gipfel op) CURRENT=2
_gipfel_completion
"""
_COMPLETED = {
    "bash": '. "$1"; COMP_WORDS=(gipfel op); COMP_CWORD=1; _gipfel_completion gipfel; echo "${COMPREPLY[@]}"',
    "zsh": _ZSH,
    "fish": "source $argv[1]; complete -C 'gipfel op'",
}
#: What is typed, and what is then shown.
_FOUND = {
    "bash": ("complete -p gipfel && echo mine=$MINE", "_gipfel_completion gipfel\nmine=1"),
    "zsh": ("print -l -- $fpath", "{}\n"),
    "fish": ("complete -C 'gipfel op'", "open"),
}


@pytest.mark.parametrize("shell", _COMPLETED)
def test_terminals_complete_the_command_in_bash_zsh_and_fish(
    environment: dict[str, str], tmp_path: Path, shell: str
) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed.")
    (tmp_path / ".bashrc").write_text("MINE=1\n")
    environment |= {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    arguments = prepare_terminals(environment)
    folder = Path(environment["JUPYTER_RUNTIME_DIR"], "completions")
    script = {"bash": "bashrc", "zsh": "_gipfel", "fish": "fish/vendor_completions.d/gipfel.fish"}[shell]
    first = ["-c", _COMPLETED[shell], *([] if shell == "fish" else [shell]), str(folder / script)]
    said = subprocess.run(
        [found, *first], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split()[0].partition(":")[0] == "open", said
    assert not said.stderr
    # The shell of a terminal finds it.
    typed, shown = _FOUND[shell]
    words = shell_command(arguments)
    words = [found, "-c", typed] if shell == "fish" else [found, *words[1:3], found, *words[4:]]
    assert shown.format(folder) in typed_in_terminal(words, typed, environment)


def typed_in_terminal(words: list[str], line: str, environment: dict[str, str]) -> str:
    """Type a line into an interactive shell, and return all that it shows."""
    own, its = pty.openpty()
    try:
        with subprocess.Popen(words, env=environment, stdin=its, stdout=subprocess.PIPE, stderr=its) as shell:
            os.write(own, f"{line}\nexit\n".encode())
            return shell.communicate(timeout=60)[0].decode()
    finally:
        os.close(own)
        os.close(its)
