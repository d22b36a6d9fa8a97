"""Set-up steps that really run on the host."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import pytest

from gipfel_cluster.edf import Edf, Mount
from gipfel_cluster.engines import ContainerRequest, engine_for
from gipfel_cluster.engines.setup import SETUP_DIRECTORIES, with_setup

SHELLS = [shell for shell in ("bash", "dash", "busybox") if shutil.which(shell)]


class Steps:
    """Files of steps in a folder, and a host on which one kind of shell is found."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.folder, self.shell = folder, shell
        self.files: list[str] = []
        (folder / "bin").mkdir()
        for name in ("env", "cat", "sleep", "pwd", "true", "false"):
            (folder / "bin" / name).symlink_to(shutil.which(name))
        if shell == "bash":
            (folder / "bin/bash").symlink_to(shutil.which("bash"))

    def add(self, text: str, name: str = "x") -> str:
        path = self.folder / f"{name}.setup"
        path.write_text(text)
        self.files.append(str(path))
        return str(path)

    def invocation(self, *command, variables=None, directory=None):
        edf = Edf(name="x", path=None, setup=tuple(self.files), env=variables or {})
        request = ContainerRequest(
            edf=edf,
            command=command,
            environment={"PATH": str(self.folder / "bin")},
            workdir=str(directory or self.folder),
            scratch=str(self.folder),
        )
        made = engine_for(edf).render(with_setup(request), python=sys.executable)
        argv = list(made.argv)
        if self.shell != "bash":
            # The machine's /bin/bash would be found: what the image lacks is kept from the first program.
            at = argv.index("/bin/sh")
            argv[at : at + 1] = [shutil.which(self.shell), *(["sh"] if self.shell == "busybox" else [])]
            argv = [each.replace("__gipfel_bash=/bin/bash", "__gipfel_bash=/none") for each in argv]
        return argv, made.environment

    def run(self, *command, stdin=b"", **options):
        argv, environment = self.invocation(*command, **options)
        done = subprocess.run(argv, env=environment, input=stdin, capture_output=True, timeout=30)
        return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture(params=SHELLS)
def steps(request, tmp_path):
    return Steps(tmp_path, request.param)


@pytest.fixture
def bash(tmp_path):
    if "bash" not in SHELLS:
        pytest.skip("bash is not installed")
    return Steps(tmp_path, "bash")


def test_exported_variables_reach_the_command_and_others_do_not(steps):
    steps.add("export A='1 $x \"é\"'\nB=2\nset -a\nC=3\n", "base")
    steps.add('export D="$A!"\numask 027\n')
    status, out, err = steps.run("env", "-0")
    variables = dict(each.split("=", 1) for each in out.split("\0") if each)
    assert (status, err) == (0, "")
    assert (variables["A"], variables["C"], variables["D"]) == ('1 $x "é"', "3", '1 $x "é"!')
    assert "B" not in variables
    assert not [name for name in variables if "gipfel" in name.lower()]
    assert steps.run(shutil.which("sh"), "-c", "umask")[1].strip().endswith("027")


def test_the_command_keeps_its_words_input_and_output(steps):
    steps.add("echo from a step\ncat\n")
    program = "import sys; print(sys.argv[1:], sys.stdin.buffer.read())"
    given = b"\xff\0in"
    words = ["a b", "", "$HOME", "'\"", "--", "é", "*", "\\", "-n"]
    result = steps.run(sys.executable, "-c", program, *words, stdin=given)
    assert result == (0, f"{words} {given!r}\n", "from a step\n")


@pytest.mark.parametrize("status", [0, 3, 255])
def test_the_exit_status_is_the_commands(steps, status):
    steps.add("true\n")
    assert steps.run(sys.executable, "-c", f"raise SystemExit({status})") == (status, "", "")


def test_the_command_takes_the_place_of_the_shell_and_gets_its_signals(steps):
    steps.add("export A=1\n")
    program = (
        "import os, signal, sys; signal.signal(15, lambda *_: sys.exit(7));"
        "print(os.getpid(), flush=True); signal.pause()"
    )
    argv, environment = steps.invocation(sys.executable, "-c", program)
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 7
    process.stdout.close()


def test_a_signal_during_a_step_ends_it(steps):
    steps.add("echo ready\nsleep 30\n")
    argv, environment = steps.invocation("true")
    process = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr.readline() == b"ready\n"
    end = time.monotonic() + 10
    # One that comes while a shell starts a program may be lost.
    while process.poll() is None:
        assert time.monotonic() < end
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.1)
    assert process.returncode in {-signal.SIGTERM, 128 + signal.SIGTERM}
    process.stderr.close()


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("true\n\nfalse\ntrue\n", 1),
        ("true\n\n(exit 7)\ntrue\n", 7),
        ("true\n\nno-such-program\n", 127),
        ("true\n\n. ./none.sh\n", None),
        ("f() { true; return 5; }\n\nf\n", 5),
    ],
)
def test_a_step_that_fails_ends_the_job_with_its_status_and_one_line(steps, text, status):
    file = steps.add(text)
    result, out, err = steps.run("env")
    assert result == status if status else result
    assert out == ""
    last = err.splitlines()[-1]
    place = f"{file}, line 3" if steps.shell == "bash" else file
    assert (
        last == f"gipfel: {place}: a set-up step ended with status {result}, so the command was not started."
    )


def test_the_file_that_fails_is_the_one_that_is_named(steps):
    steps.add("true\n", "a")
    second = steps.add("false\n", "b")
    third = steps.add("echo never\n", "c")
    _, _, err = steps.run("env")
    assert second in err
    assert third not in err
    assert "never" not in err


@pytest.mark.parametrize("text", ["if\n", "return 4\n", "exit 6\n", "echo 'open\n"])
def test_a_file_that_ends_otherwise_starts_nothing(steps, text):
    file = steps.add(text)
    status, out, err = steps.run("env")
    assert status
    assert out == ""
    assert f"gipfel: {file}" in err.splitlines()[-1]


def test_an_exit_without_an_error_fails_since_nothing_was_started(steps):
    file = steps.add("exit 0\n")
    status, out, err = steps.run("env")
    assert (status, out) == (1, "")
    assert err == f"gipfel: {file}: a set-up step ended, so the command was not started.\n"


def test_conditions_may_fail(steps):
    steps.add("if false; then :; fi\nfalse || true\n! true || :\nwhile false; do :; done\nexport A=1\n")
    assert "A=1" in steps.run("env")[1].splitlines()


def test_every_file_and_the_command_start_in_the_same_folder(steps):
    (steps.folder / "sub").mkdir()
    steps.add("cd sub\nexport FIRST=$PWD\n", "a")
    steps.add("export SECOND=$PWD\ncd /\n", "b")
    status, out, _ = steps.run("env")
    lines = out.splitlines()
    assert status == 0
    assert f"FIRST={steps.folder}/sub" in lines
    assert f"SECOND={steps.folder}" in lines
    assert f"PWD={steps.folder}" in lines


def test_sourced_files_do_not_see_the_commands_arguments(steps):
    (steps.folder / "inner.sh").write_text("export COUNT=$#\n")
    steps.add(". ./inner.sh\nset -- other words\nexport MINE=$#\n")
    status, out, _ = steps.run("env", "-u", "NOTHING")
    assert (status, {"COUNT=0", "MINE=2"} <= set(out.splitlines())) == (0, True)


def test_in_bash_failing_lines_of_sourced_files_are_ignored(bash):
    (bash.folder / "inner.sh").write_text("false\nexport INNER=1\n")
    bash.add("source ./inner.sh\ndeclare -A table=([a]=b)\nexport TABLE=${table[a]}\n")
    status, out, err = bash.run("env")
    assert (status, err) == (0, "")
    assert {"INNER=1", "TABLE=b"} <= set(out.splitlines())


def test_without_bash_source_is_not_available_and_reported():
    if "dash" not in SHELLS:
        pytest.skip("dash is not installed")
    with tempfile.TemporaryDirectory() as name:
        steps = Steps(Path(name), "dash")
        file = steps.add("source ./x.sh\n")
        status, _, err = steps.run("env")
    assert status == 127
    assert "source" in err
    assert file in err.splitlines()[-1]


def test_a_virtual_environment_is_activated(steps):
    venv.create(steps.folder / "venv", with_pip=False)
    steps.add(". ./venv/bin/activate\n")
    status, out, err = steps.run("python3", "-c", "import sys; print(sys.prefix)")
    assert (status, out, err) == (0, f"{steps.folder}/venv\n", "")


def test_a_command_that_is_not_there_is_127_and_no_step(steps):
    steps.add("true\n")
    status, _, err = steps.run("no-such-program")
    assert status == 127
    assert "set-up step" not in err


def test_an_edf_without_steps_stays_as_it_is():
    request = ContainerRequest(edf=Edf(name="x", path=None), command=("a",), scratch="/s")
    assert with_setup(request) == request


def test_twice_is_once(tmp_path):
    edf = Edf(name="x", path=None, image="/none.sqsh", setup=(str(tmp_path / "x.setup"),))
    request = ContainerRequest(edf=edf, command=("a",), scratch="/s")
    once = with_setup(request)
    assert with_setup(once) == once
    assert once.command[:2] == ("/bin/sh", "-c")
    assert not any("\n" in word for word in once.command)


def test_the_files_are_where_no_mount_covers_them():
    def places(*destinations):
        mounts = tuple(Mount(source="/tmp", destination=each) for each in destinations)
        edf = Edf(name="x", path=None, image="img", setup=("/a/x.setup", "/b/x.setup"), mounts=mounts)
        request = ContainerRequest(edf=edf, command=("a",), scratch="/s")
        return [(each.destination, each.flags) for each in with_setup(request).mounts]

    assert places("/tmp") == [(f"{SETUP_DIRECTORIES[0]}/{number}-x.setup", ("ro",)) for number in (0, 1)]
    assert places("/run")[0][0].startswith(SETUP_DIRECTORIES[1])
    assert places("/run", "/opt")[0][0].startswith(SETUP_DIRECTORIES[2])
