"""Options, JSON and exit statuses of ``gipfel edf``."""

import json
import os
import subprocess
import sys

import pytest

from gipfel_extension.cli import main


@pytest.fixture
def gipfel(tmp_path, monkeypatch, capsys):
    """Runs the command in this process; gives its exit status and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EDF_PATH", str(tmp_path))

    def call(*words):
        status = main(list(words))
        return status, capsys.readouterr().out

    return call


def test_the_dialect_is_who_reads_the_edf(gipfel, tmp_path):
    (tmp_path / "x.toml").write_text('image = "debian:12"\nmounts = ["/a"]\n')
    assert gipfel("edf", "check", "x") == (0, f"{tmp_path}/x.toml: valid\n")
    status, written = gipfel("edf", "check", "x", "--dialect", "sarus", "--json")
    assert (status, json.loads(written)["diagnostics"][0]["code"]) == (1, "sarus-one-field")
    status, written = gipfel("edf", "show", "x", "--dialect", "sarus")
    assert status != 0
    assert gipfel("edf", "check", "x", "--dialect", "docker")[0] == 2


def test_the_last_line_of_a_check_names_the_edf_and_how_it_is(gipfel, tmp_path):
    (tmp_path / "base.toml").write_text("image = 3\nworkdir = 4\n")
    (tmp_path / "x.toml").write_text('base_environment = "base"\n')
    status, written = gipfel("edf", "check", "x")
    assert status == 1
    assert written.splitlines()[-1] == f"{tmp_path}/x.toml: not valid, 2 errors"
    assert written.count(f"{tmp_path}/base.toml") == 2
    (tmp_path / "x.toml").write_text("mounts = [" + "'a'," * 200 + "]")
    written = gipfel("edf", "check", "x")[1].splitlines()
    assert len(written) == 102
    assert "101 more diagnostics, 100 of them errors, are not listed" in written[-2]
    assert written[-1] == f"{tmp_path}/x.toml: not valid, more than 100 errors"


def test_an_unset_variable_is_shown_as_unset(gipfel, tmp_path):
    (tmp_path / "x.toml").write_text('[env]\nA = "1"\nC = ""\n')
    status, written = gipfel("edf", "show", "x", "--origin")
    assert status == 0
    assert f"env.A = 1    # {tmp_path}/x.toml" in written
    assert f"env.C is unset    # {tmp_path}/x.toml" in written


def test_an_edf_with_a_wrong_base_is_named_when_it_is_shown(tmp_path):
    (tmp_path / "base.toml").write_text("image = 3\n")
    (tmp_path / "x.toml").write_text('base_environment = "./base.toml"\n')
    argv = [sys.executable, "-m", "gipfel_extension.cli", "edf", "show", "./x.toml"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"gipfel: {tmp_path}/x.toml can't be used: {tmp_path}/base.toml:1: image: ")


def test_origins_as_json(gipfel, tmp_path):
    (tmp_path / "base.toml").write_text("[env]\nA = '1'\n")
    (tmp_path / "x.toml").write_text('base_environment = "base"\nworkdir = "/w"\n')
    status, written = gipfel("edf", "show", "x", "--origin", "--json")
    assert status == 0
    assert json.loads(written)["origins"] == {
        "workdir": f"{tmp_path}/x.toml",
        "env.A": f"{tmp_path}/base.toml",
    }
    assert "origins" not in json.loads(gipfel("edf", "show", "x", "--json")[1])


def test_the_schema_is_one_document(gipfel):
    status, written = gipfel("edf", "schema")
    assert status == 0
    assert json.loads(written)["title"] == "EDF"


def test_a_folder_gives_a_list_with_files(gipfel, tmp_path):
    (tmp_path / "a.toml").write_text("")
    (tmp_path / "b.toml").write_text("image = 1")
    status, written = gipfel("edf", "check", ".", "--json")
    assert status == 1
    assert [(each["file"], each["valid"]) for each in json.loads(written)] == [
        (f"{tmp_path}/a.toml", True),
        (f"{tmp_path}/b.toml", False),
    ]


def test_a_name_on_the_search_path_wins_over_a_folder_of_that_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "edf").mkdir()
    (tmp_path / "edf" / "torch.toml").write_text('workdir = "/tmp"\n')
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "other.toml").write_text('workdir = "/tmp"\n')
    monkeypatch.setenv("EDF_PATH", str(tmp_path / "edf"))
    monkeypatch.chdir(tmp_path)
    assert main(["edf", "check", "torch", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(tmp_path / "edf" / "torch.toml")
    assert main(["edf", "check", "./torch", "--json"]) == 0
    assert [each["edf"]["name"] for each in json.loads(capsys.readouterr().out)] == ["other"]


def test_output_that_nobody_takes_is_one_line_or_none():
    def run(words):
        script = f'exec "{sys.executable}" -m gipfel_extension.cli edf schema {words}'
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)

    done = run(">/dev/full")
    assert (done.returncode, done.stderr) == (1, "gipfel: No space left on device\n")
    assert run(">&-").stderr == ""


def test_a_user_without_a_home_folder_is_told_so():
    if os.geteuid() != 0:
        pytest.skip("Only root can become a user that the machine does not know.")
    for words in (["edf", "show", "~/x"], ["edf", "check", "~nobody-of-this-name/x"], ["kernel", "add", "x"]):
        process = os.fork()
        if process == 0:
            try:
                os.environ.pop("HOME", None)
                os.chdir("/")
                sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: SIM115 - a separate process
                os.setuid(61234)
                os._exit(main(words))
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1, words


def test_what_render_shows_is_what_a_job_gets(gipfel, tmp_path, monkeypatch):
    (tmp_path / "x.toml").write_text(
        'image = "ubuntu"\n[env]\nJUPYTERHUB_API_URL = "http://x"\nSLURM_NTASKS = "9"\nA = "1"\n'
    )
    monkeypatch.delenv("JUPYTERHUB_API_URL", raising=False)
    status, written = gipfel("edf", "render", "x", "--engine", "pyxis", "--json", "--", "true")
    document = json.loads(written)
    assert (status, document["environment"]) == (0, {"A": "1"})
    assert "the scheduler: JUPYTERHUB_API_URL, SLURM_NTASKS." in document["notes"][0]


def test_render_says_that_no_container_is_entered(gipfel, tmp_path):
    (tmp_path / "bare.toml").write_text('[env]\nA = "1"\n')
    for engine in ("pyxis", "podman", "apptainer"):
        document = json.loads(gipfel("edf", "render", "bare", "--engine", engine, "--json", "--", "x")[1])
        assert document["argv"] == ["x"]
        assert "no container is entered" in document["notes"][0]
    document = json.loads(gipfel("edf", "render", "bare", "--engine", "ce", "--json", "--", "x")[1])
    assert document["argv"][:2] == ["srun", f"--environment={tmp_path}/bare.toml"]
    assert "no container is started unless" in document["notes"][0]
    assert (
        json.loads(gipfel("edf", "render", "bare", "--engine", "host", "--json", "--", "x")[1])["notes"] == []
    )
