import json
import os
import subprocess
import sys

import pytest

from gipfel_cluster.edf import check_edf, check_edfs, check_local, load_edf, show_edf


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "image/usr").mkdir(parents=True)
    return tmp_path


def here(folder, text):
    (folder / "x.toml").write_text(text)
    return check_local(load_edf("./x.toml", environment={}, directory=folder))


def squashfs(folder):
    try:
        subprocess.run(["mksquashfs", folder / "image", folder / "i.sqsh", "-quiet"], check=True, stdout=-3)
    except FileNotFoundError:
        pytest.skip("mksquashfs is not installed")
    return folder / "i.sqsh"


def test_images_that_are_some(folder):
    squashfs(folder)
    assert not here(folder, 'image = "./i.sqsh"')
    assert not here(folder, 'image = "./image"')
    assert not here(folder, 'mounts = ["/tmp", "./i.sqsh:/data:sqsh"]')


def test_a_cut_image(folder):
    image = squashfs(folder)
    image.write_bytes(image.read_bytes()[:100])
    (error,) = here(folder, 'image = "./i.sqsh"')
    assert "cut off" in error.message


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('image = "./none.sqsh"', "image", "does not exist"),
        ('image = "./x.toml"', "image", "not a SquashFS"),
        ('image = "./empty"', "image", "empty directory"),
        ('image = "./pipe"', "image", "neither a file nor a directory"),
        ('mounts = ["/tmp", "./none:/x"]', "mounts[1]", "No such file"),
        ('mounts = ["./x.toml:/x:sqsh"]', "mounts[0]", "not a SquashFS"),
    ],
)
def test_what_is_not_here_is_one_line(folder, text, key, words):
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    (error,) = here(folder, text)
    assert (error.severity, error.key) == ("error", key)
    assert words in error.message
    assert error.fix
    assert "\n" not in str(error)


def test_an_image_of_a_registry_is_a_warning_where_the_engine_pulls_it(folder):
    (folder / "x.toml").write_text('image = "ubuntu:24.04"')
    edf = load_edf("./x.toml", environment={}, directory=folder)
    (warning,) = check_local(edf)
    assert (warning.severity, warning.key) == ("warning", "image")
    assert "pull it when the container starts" in warning.message
    (error,) = check_local(edf, pulls=False)
    assert (error.severity, error.key) == ("error", "image")
    checked = check_edf("./x.toml", environment={}, directory=folder, here=True)
    assert checked.valid


def test_a_folder_stands_for_its_files(folder):
    (folder / "good.toml").write_text("")
    (folder / "bad.toml").write_text("image = 3")
    checked = check_edfs(["."], environment={}, directory=folder)
    assert [(os.path.basename(each.file), each.edf is not None) for each in checked] == [
        ("bad.toml", False),
        ("good.toml", True),
    ]


def test_warnings_do_not_make_an_edf_invalid(folder):
    (folder / "x.toml").write_text(
        'image = "x.sqsh"\n[env]\nA = "$USER"\n[annotations]\nhooks.cxi.enabled = "true"\n'
        'com.hooks.dcgm.enabled = "True"\n'
    )
    checked = check_edf("./x.toml", environment={}, directory=folder)
    assert checked.edf
    assert {each.code for each in checked.diagnostics} == {
        "unbraced-variable",
        "image-path",
        "hook-prefix",
        "hook-value",
    }


def test_show_names_the_file_of_each_value(folder):
    (folder / "x.toml").write_text('mounts = ["/a:/b:ro"]\n[env]\nA = "1"\n')
    lines = show_edf(check_edf("./x.toml", environment={}, directory=folder), origin=True)
    assert f"mounts = /a:/b:ro    # {folder}/x.toml" in lines
    assert f"env.A = 1    # {folder}/x.toml" in lines
    assert "writable = true    # default" in lines


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-I", "-m", "gipfel_cluster.edf", *arguments],
        cwd=folder,
        env={"HOME": str(folder), "EDF_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_program_answers_in_json(folder):
    (folder / "x.toml").write_text('image = "./none.sqsh"\n')
    (folder / "y.toml").write_text("")
    bad = run(folder, "check", "--here", "--json", "x")
    answer = json.loads(bad.stdout)
    assert (bad.returncode, answer["valid"], answer["edf"]) == (1, False, None)
    assert set(answer["diagnostics"][0]) == {"severity", "code", "file", "line", "key", "message", "fix"}
    good = run(folder, "check", "--json", "y")
    answer = json.loads(good.stdout)
    assert (good.returncode, answer["valid"], answer["edf"]["name"]) == (0, True, "y")
    both = run(folder, "check", "--json", "x", "y")
    assert [each["file"] for each in json.loads(both.stdout)] == [f"{folder}/x.toml", f"{folder}/y.toml"]
    assert json.loads(run(folder, "list", "--json").stdout) == ["x", "y"]


def test_the_program_answers_in_lines(folder):
    (folder / "x.toml").write_text("image = 3\n")
    bad = run(folder, "check", "x")
    assert (bad.returncode, bad.stderr) == (1, "")
    assert (
        bad.stdout
        == f'{folder}/x.toml:1: image: error: must be a string, but is an integer. Write image = "…".\n'
    )
    assert run(folder, "check", "none").returncode == 1
    assert run(folder, "check").returncode == 2
    assert run(folder, "show", "x").returncode == 1


def test_control_characters_are_escaped(folder):
    (folder / "x.toml").write_text('[env]\nA = "\\u001b]0;title\\u0007é\\tb"\n[annotations]\n"a\\nb" = "1"\n')
    lines = show_edf(check_edf("./x.toml", environment={}, directory=folder), origin=True)
    assert any(line.startswith("env.A = \\x1b]0;title\\x07é\tb") for line in lines)
    assert any(line.startswith("annotations.a\\nb = 1") for line in lines)


def test_an_empty_name_is_no_folder(folder):
    (folder / "x.toml").write_text("")
    (resolution,) = check_edfs([""], environment={"EDF_PATH": str(folder)}, directory=folder)
    assert not resolution.valid


def test_an_answer_is_written_in_any_locale_and_into_anything(folder):
    (folder / "x.toml").write_text("[env]\nA = 'é𝄞'\n")
    argv = [sys.executable, "-m", "gipfel_cluster.edf", "show", "./x.toml"]

    def run(stdout=subprocess.PIPE, **variables):
        return subprocess.run(
            argv, stdout=stdout, stderr=subprocess.PIPE, cwd=folder, env=os.environ | variables
        )

    done = run(PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"env.A = \xe9\\U0001d11e" in done.stdout
    with open("/dev/full", "wb") as full:
        done = run(full)
    assert (done.returncode, done.stderr) == (1, b"The output can't be written: No space left on device.\n")
    argv[:0] = ["sh", "-c", 'exec "$@" >&-', "sh"]
    assert run().stderr == b""
