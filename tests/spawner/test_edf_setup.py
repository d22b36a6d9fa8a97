"""Set-up steps beside an EDF: found, shown, in the digest, and diagnosed."""

import json
import os
import subprocess
import sys

import pytest

from gipfel_cluster.edf import as_json, check_edf, check_edfs, load_edf, resolve_text, show_edf


class Place:
    """A folder of EDFs and steps, which is the search path too."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {"HOME": str(folder), "EDF_PATH": str(folder)}

    def write(self, name, content=""):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def check(self, name="x"):
        return check_edf(name, environment=self.environment, directory=self.folder)

    def found(self, name="x"):
        """Return what is said of an EDF, but for notes."""
        return [each for each in self.check(name).diagnostics if each.severity != "note"]

    def load(self, name="x"):
        return load_edf(name, environment=self.environment, directory=self.folder)

    def all(self, *names):
        return check_edfs(names or [str(self.folder)], environment=self.environment, directory=self.folder)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_steps_of_bases_come_first_and_each_once(place):
    for name, base in (("a", "[]"), ("b", '["a"]'), ("c", "[]"), ("x", '["b", "a", "c", "b"]')):
        place.write(f"{name}.toml", f"base_environment = {base}\n")
    wanted = tuple(place.write(f"{name}.setup", f"echo {name}\n") for name in ("a", "b", "x"))
    assert place.load().setup == wanted
    assert place.load("c").setup == ()


def test_steps_are_in_the_digest_by_their_content_and_not_by_their_place(place):
    place.write("x.toml", 'workdir = "/w"\n')
    without = place.load()
    place.write("x.setup", "echo 1\n")
    one = place.load()
    place.write("y.toml", 'workdir = "/w"\n')
    place.write("y.setup", "echo 1\n")
    assert "setup" not in without.content
    assert one.digest == place.load("y").digest != without.digest
    assert one.content == without.content | {"setup": list(one.setup_digests)}
    place.write("x.setup", "echo 2\n")
    assert place.load().digest != one.digest


def test_the_digest_is_that_of_the_file(place):
    place.write("x.toml")
    file = place.write("x.setup", "echo é\n")
    answer = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout
    assert place.load().setup_digests == (f"sha256:{answer.split()[0]}",)


def test_show_tells_path_content_and_origin(place):
    base = place.write("a.toml")
    x = place.write("x.toml", 'base_environment = "a"\n')
    first = place.write("a.setup", "source /venv/bin/activate\n\n  cd /x\n")
    second = place.write("x.setup", "echo \x1b[31m\x07\ttab")
    result = place.check()
    assert show_edf(result)[-6:] == [
        f"setup = {first}",
        "    source /venv/bin/activate",
        "    ",
        "      cd /x",
        f"setup = {second}",
        "    echo \\x1b[31m\\x07\ttab",
    ]
    shown = show_edf(result, origin=True)
    assert f"setup = {first}    # {base}" in shown
    assert f"setup = {second}    # {x}" in shown
    document = as_json(result, origin=True)
    assert document["setup"][0] == {
        "path": first,
        "digest": result.edf.setup_digests[0],
        "text": "source /venv/bin/activate\n\n  cd /x\n",
    }
    assert document["edf"]["setup"] == [first, second]
    assert document["origins"] == {"setup[0]": base, "setup[1]": x}
    assert json.dumps(document)


def test_an_edf_that_is_a_link_has_the_steps_beside_it_else_those_of_its_target(place):
    (place.folder / "shared").mkdir()
    place.write("shared/team.toml")
    team = place.write("shared/team.setup", "echo team\n")
    (place.folder / "x.toml").symlink_to("shared/team.toml")
    assert place.load().setup == (team,)
    own = place.write("x.setup", "echo own\n")
    assert place.load().setup == (own,)


def test_the_text_of_an_editor_has_the_steps_of_its_file(place):
    setup = place.write("x.setup", "echo\n")

    def steps(file):
        return resolve_text("", file=file, environment={}, directory=place.folder).edf.setup

    assert steps(str(place.folder / "x.toml")) == (setup,)
    assert steps("x.toml") == ()


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"echo\n" * 13108, None, "larger than 64 KiB"),
        (b"true\necho \0\n", 2, "NUL"),
        (b"true\n\necho \xff\n", 3, "UTF-8"),
    ],
)
def test_a_file_that_no_shell_should_read_is_an_error(place, content, line, words):
    place.write("x.toml")
    file = place.write("x.setup", content)
    (error,) = place.found()
    assert (error.severity, error.code, error.file, error.line) == ("error", "setup", file, line)
    assert words in error.message
    assert error.fix
    assert place.check().edf is None


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "loop"])
def test_a_path_that_is_not_a_file_is_an_error_without_blocking(place, kind):
    place.write("x.toml")
    path = place.folder / "x.setup"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere" if kind == "link" else "x.setup")
    (error,) = place.found()
    assert (error.severity, error.code, error.file) == ("error", "setup", str(path))


def test_an_error_in_the_steps_of_a_base_is_one_of_the_edf(place):
    place.write("a.toml")
    file = place.write("a.setup", b"\0")
    place.write("x.toml", 'base_environment = "a"\n')
    assert [(each.code, each.file) for each in place.found()] == [("setup", file)]


def test_a_file_that_others_may_change_is_a_warning(place):
    place.write("x.toml")
    path = place.folder / "x.setup"
    path.write_text("true\n")
    assert not place.found()
    for mode, folder in ((0o646, 0o755), (0o644, 0o777)):
        path.chmod(mode)
        place.folder.chmod(folder)
        (warning,) = place.found()
        assert (warning.severity, warning.code, warning.file) == ("warning", "setup-writable", str(path))
        assert "as you" in warning.message
    place.folder.chmod(0o1777)
    assert not place.found()
    assert place.load().setup


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_file_is_a_warning(place):
    place.write("x.toml")
    os.chown(place.write("x.setup", "true\n"), 12345, 12345)
    (warning,) = place.found()
    assert (warning.severity, warning.code) == ("warning", "setup-owner")
    assert "12345" in warning.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_steps_of_root_are_accepted_and_unreadable_steps_are_an_error(place):
    place.write("x.toml")
    path = place.folder / "x.setup"
    path.write_text("true\n")
    for folder in (place.folder, *place.folder.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)

    def codes():
        # The package is imported before the id changes: it may be in a folder of root's.
        code = (
            "import os, sys; from gipfel_cluster.edf.lookup import read_steps; os.setgid(12345); "
            "os.setuid(12345); print(*[each.code for each in read_steps(sys.argv[1])[1]])"
        )
        argv = [sys.executable, "-c", code, str(place.folder / "x.toml")]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    path.chmod(0o644)
    assert codes() == ""
    path.chmod(0o600)
    assert codes() == "setup"


def test_line_ends_of_another_system_are_a_warning_with_its_line(place):
    place.write("x.toml")
    place.write("x.setup", "true\nsource a\r\ntrue\r\n")
    (warning,) = place.found()
    assert (warning.severity, warning.code, warning.line) == ("warning", "setup-line-ends", 2)


def test_steps_without_an_edf_are_a_warning_of_their_folder(place):
    place.write("x.toml")
    place.write("x.setup", "true\n")
    alone = place.write("y.setup", "true\n")
    x, y = place.all()
    assert (x.edf is not None, [each.code for each in x.diagnostics]) == (True, ["no-image"])
    assert (y.file, y.edf, y.valid) == (alone, None, True)
    assert [(each.severity, each.code) for each in y.diagnostics] == [("warning", "setup-orphan")]
    assert as_json(y)["valid"]
    # Named alone it stands for its EDF.
    assert [each.diagnostics for each in place.all("./y.setup")] == [y.diagnostics]
    assert [each.file for each in place.all("./x.setup")] == [x.file]


def test_the_program_shows_steps_and_reports_orphans(place):
    place.write("x.toml")
    file = place.write("x.setup", "echo hello\n")
    alone = place.write("y.setup", "true\n")

    def run(*arguments):
        argv = [sys.executable, "-m", "gipfel_cluster.edf", *arguments]
        environment = place.environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(argv, cwd=place.folder, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout

    assert run("show", "x")[1].splitlines()[-2:] == [f"setup = {file}", "    echo hello"]
    assert json.loads(run("show", "--json", "x")[1])["setup"][0]["path"] == file
    status, said = run("check", ".")
    assert status == 0
    assert alone in said
