"""The command: its help, its exit statuses, and one line for every mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gipfel_extension.cli.main import gipfel as group


@pytest.fixture
def gipfel(tmp_path: Path):
    def call(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIPFEL_")}
        return subprocess.run(
            [sys.executable, "-I", "-m", "gipfel_extension.cli", *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**kept, "HOME": str(tmp_path), "EDF_PATH": str(tmp_path), **more},
        )

    return call


def _one_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("gipfel: ")
    return lines[0]


def test_help_teaches_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; from gipfel_extension.cli import main; code = main(['--help']);"
        "heavy = {'pydantic', 'papermill', 'nbformat', 'jupyterlab', 'numpy'};"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout.rstrip().endswith("0 []")
    assert "gipfel submit in.ipynb out.ipynb" in done.stdout


def test_every_command_is_found_by_its_own_name() -> None:
    with click.Context(group) as context:
        names = group.list_commands(context)
        assert len(names) > 40
        for name in names:
            command = group.get_command(context, name)
            assert command is not None
            assert command.name == name
            assert command.short_help or command.hidden
        assert group.get_command(context, "nothing") is None


@pytest.mark.parametrize(
    "words", [("edf", "check"), ("edf", "show"), ("edf", "render"), ("runtime", "build"), ("submit",)]
)
def test_every_commands_help_has_an_example(gipfel, words: tuple[str, ...]) -> None:
    done = gipfel(*words, "--help")
    assert done.returncode == 0
    assert f"gipfel {' '.join(words)} " in done.stdout.partition("Examples:")[2]


@pytest.mark.parametrize(
    "words",
    [
        ("nothing",),
        ("submit", "a.ipynb"),
        ("submit", "a.ipynb", "b.ipynb", "--nodes", "x"),
        ("submit", "a.ipynb", "b.ipynb", "-p", "one"),
        ("edf", "check", "--nothing"),
        ("edf", "render", "a"),
        ("edf", "render", "a", "--engine", "warp", "--", "true"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(gipfel, words: tuple[str, ...]) -> None:
    done = gipfel(*words)
    assert done.returncode == 2
    assert "--help" in _one_line(done)
    assert done.stdout == ""


def test_edf_check_says_what_is_wrong_and_where(gipfel, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text('image = "ubuntu:24.04"\n[env]\nA = "b"\n')
    (tmp_path / "bad.toml").write_text("image = [\n")
    good = gipfel("edf", "check", "good")
    assert (good.returncode, good.stdout) == (0, f"{tmp_path}/good.toml: valid\n")
    both = gipfel("edf", "check", ".", "--json")
    assert both.returncode == 1
    answers = json.loads(both.stdout)
    assert {Path(answer["file"]).stem: answer["valid"] for answer in answers} == {"good": True, "bad": False}
    one = json.loads(gipfel("edf", "check", "good", "--json", "--here").stdout)
    assert one["valid"]
    assert one["edf"]["env"] == {"A": "b"}
    missing = gipfel("edf", "check", "nowhere")
    assert missing.returncode == 1
    assert "looked for" in missing.stdout
    (tmp_path / "empty").mkdir()
    assert gipfel("edf", "check", "./empty").returncode == 1


def test_edf_show_names_the_file_of_each_value(gipfel, tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('[env]\nA = "1"\n')
    (tmp_path / "top.toml").write_text('base_environment = "base"\n[env]\nB = "${HOME}"\n')
    done = gipfel("edf", "show", "top", "--origin")
    assert f"env.A = 1    # {tmp_path}/base.toml" in done.stdout
    assert f"env.B = {tmp_path}    # {tmp_path}/top.toml" in done.stdout
    wrong = gipfel("edf", "show", "nowhere")
    assert wrong.returncode == 1
    assert "no EDF of this name" in _one_line(wrong)


def test_edf_render_shows_what_would_run(gipfel, tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text('[env]\nA = "b c"\n')
    document = json.loads(
        gipfel("edf", "render", "plain", "--engine", "host", "--json", "--", "echo", "-n").stdout
    )
    assert document == {"argv": ["echo", "-n"], "environment": {"A": "b c"}, "notes": []}
    assert gipfel("edf", "render", "plain", "--", "echo", "a b").stdout == "A='b c' echo 'a b'\n"
    image = tmp_path / "image"
    image.mkdir()
    (tmp_path / "boxed.toml").write_text(f'image = "{image}"\n')
    refused = gipfel("edf", "render", "boxed", "--engine", "host", "--", "true")
    assert refused.returncode == 1
    assert "host engine can't run" in _one_line(refused)


def test_runtime_build_refuses_a_folder_that_holds_something_else(gipfel, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    done = gipfel("runtime", "build", "mine")
    assert done.returncode == 1
    assert "exists and is not a runtime" in _one_line(done)
    assert "can't be a runtime's prefix" in _one_line(gipfel("runtime", "build", "new", "--prefix", "a b"))
    assert not (tmp_path / "new").exists()
