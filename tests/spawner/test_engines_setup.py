"""Set-up steps that really run: on the host, and in containers as root and as a plain user."""

import importlib.util
import json
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
from gipfel_cluster.engines.bubblewrap import Bubblewrap
from gipfel_cluster.engines.setup import PLACES, with_setup
from gipfel_cluster.job import JOB_VARIABLE, JobSpec
from gipfel_cluster.model import GipfelError

_spec = importlib.util.spec_from_file_location(
    "sandboxes", Path(__file__).with_name("test_engines_bubblewrap.py")
)
assert _spec is not None
bubblewrap = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bubblewrap)
shared = bubblewrap.shared
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


def test_what_a_file_sources_sees_no_words_of_the_command(steps):
    (steps.folder / "inner.sh").write_text("export COUNT=$#\n")
    steps.add(". ./inner.sh\nset -- other words\nexport MINE=$#\n")
    status, out, _ = steps.run("env", "-u", "NOTHING")
    assert (status, {"COUNT=0", "MINE=2"} <= set(out.splitlines())) == (0, True)


def test_in_bash_what_a_sourced_file_does_inside_is_its_own_business(bash):
    (bash.folder / "inner.sh").write_text("false\nexport INNER=1\n")
    bash.add("source ./inner.sh\ndeclare -A table=([a]=b)\nexport TABLE=${table[a]}\n")
    status, out, err = bash.run("env")
    assert (status, err) == (0, "")
    assert {"INNER=1", "TABLE=b"} <= set(out.splitlines())


def test_without_bash_source_is_no_word_and_that_is_said():
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

    assert places("/tmp") == [(f"{PLACES[0]}/{number}-x.setup", ("ro",)) for number in (0, 1)]
    assert places("/run")[0][0].startswith(PLACES[1])
    assert places("/run", "/opt")[0][0].startswith(PLACES[2])


needs_bubblewrap = pytest.mark.skipif(Bubblewrap().missing() is not None, reason=str(Bubblewrap().missing()))


@pytest.fixture(params=["root", "plain"])
def sandboxes(request, shared):
    user = 0 if request.param == "root" else bubblewrap.PLAIN_USER
    if os.geteuid() != 0:
        if request.param == "root":
            pytest.skip("needs root")
        user = os.geteuid()
    sandboxes = bubblewrap.Sandboxes(shared, user)
    yield sandboxes
    sandboxes.end()


class Contained:
    """Runs commands with steps in containers."""

    def __init__(self, sandboxes: bubblewrap.Sandboxes) -> None:
        self.sandboxes = sandboxes
        self.folder = sandboxes.scratch / "steps"
        self.folder.mkdir()

    def run(self, image, command, *texts, stdin=b"", mounts=(), **edf):
        files = []
        for number, text in enumerate(texts):
            (self.folder / f"{number}.setup").write_text(text)
            files.append(str(self.folder / f"{number}.setup"))
        subprocess.run(["chmod", "-R", "a+rX", self.folder], check=True)
        request = with_setup(
            ContainerRequest(
                edf=Edf(name="x", path=None, image=image, setup=tuple(files), **edf),
                command=tuple(command),
                mounts=mounts,
                scratch="/s",
            )
        )
        return self.sandboxes.run(image, *request.command, stdin=stdin, mounts=request.mounts, **edf)


@pytest.fixture
def contained(sandboxes):
    return Contained(sandboxes)


@pytest.fixture(scope="module")
def images(shared):
    """The image as a folder and as a file; one with bash beside sh, one without any shell."""
    bash = shared / "bash"
    bubblewrap.make_root(bash)
    program = os.path.realpath(shutil.which("bash"))
    shutil.copy(program, bash / "usr/bin/bash")
    for library in bubblewrap.libraries(program):
        folder = bash / os.path.realpath(os.path.dirname(library)).lstrip("/")
        shutil.copy(os.path.realpath(library), folder / os.path.basename(library))
    shell_less = shared / "no-shell"
    bubblewrap.make_root(shell_less)
    (shell_less / "usr/bin/sh").unlink()
    for folder in (bash, shell_less):
        if shutil.which("mksquashfs") and shutil.which("squashfuse"):
            bubblewrap.make_squashfs(folder, shared / f"{folder.name}.sqsh")
    subprocess.run(["chmod", "-R", "a+rX", shared], check=True)
    return shared


@needs_bubblewrap
@pytest.mark.parametrize("name", ["root", "image.sqsh", "bash", "bash.sqsh"])
@pytest.mark.parametrize("writable", [True, False])
def test_steps_run_in_a_container(contained, images, name, writable):
    image = bubblewrap.require(images / name)
    text = 'export A="$(cat /opt/marker) ${BASH_VERSION:+bash}"\ncat\n'
    result = contained.run(
        image, ["sh", "-c", 'echo "$A-$B"; cat; exit 9'], text, "export B=2\n", stdin=b"in", writable=writable
    )
    assert result == (9, f"of the image {'bash' if 'bash' in name else ''}-2\nin", "")


@needs_bubblewrap
@pytest.mark.parametrize("name", ["image.sqsh", "bash"])
def test_a_failing_step_in_a_container_names_the_file_of_the_host(contained, images, name):
    status, out, err = contained.run(
        bubblewrap.require(images / name), ["env"], "true\n", "true\n(exit 11)\n"
    )
    assert (status, out) == (11, "")
    where = f"{contained.folder}/1.setup{', line 2' if name == 'bash' else ''}"
    assert err == f"gipfel: {where}: a set-up step ended with status 11, so the command was not started.\n"


@needs_bubblewrap
def test_steps_are_read_only_in_the_container(contained, images):
    text = f"(echo x >> {PLACES[0]}/0-0.setup) 2>/dev/null && export WRITTEN=1\n:\n"
    status, out, _ = contained.run(bubblewrap.require(images / "bash"), ["env"], text)
    assert status == 0
    assert "WRITTEN" not in out


@needs_bubblewrap
def test_a_mount_over_run_does_not_hide_them(contained, images):
    (contained.folder / "run").mkdir()
    mount = Mount(source=str(contained.folder / "run"), destination="/run")
    result = contained.run(
        bubblewrap.require(images / "root"), ["sh", "-c", "echo $A"], "export A=1\n", mounts=(mount,)
    )
    assert result == (0, "1\n", "")


@needs_bubblewrap
@pytest.mark.parametrize("name", ["no-shell", "no-shell.sqsh"])
def test_an_image_without_a_shell_is_refused_in_one_line(contained, images, name):
    with pytest.raises(GipfelError, match="has no /bin/sh, which the set-up steps") as raised:
        contained.run(bubblewrap.require(images / name), ["env"], "true\n")
    assert "\n" not in str(raised.value)
    # One that a mount may bring can't be refused before it is there.
    (contained.folder / "bin").mkdir()
    mount = Mount(source=str(contained.folder / "bin"), destination="/usr/bin")
    contained.run(bubblewrap.require(images / name), ["env"], "true\n", mounts=(mount,))


def test_a_plan_with_steps_is_plain_data(tmp_path):
    edf = Edf(name="x", path=None, image="img", setup=(str(tmp_path / "x.setup"),))
    made = with_setup(ContainerRequest(edf=edf, command=("a", "b c"), scratch="/s"))
    assert json.loads(made.model_dump_json())["command"][-3:] == ["--", "a", "b c"]


@pytest.mark.parametrize("place", ["host", pytest.param("bash", marks=needs_bubblewrap)])
def test_a_job_runs_the_steps_of_its_edf_and_its_base(images, tmp_path, place):
    image = "" if place == "host" else f'image = "{images / place}"\n'
    (tmp_path / "x.toml").write_text(f'{image}base_environment = "./base.toml"\n')
    (tmp_path / "base.toml").write_text("")
    (tmp_path / "base.setup").write_text(
        "export A=base\nsource ./lines.sh\n" if not image else "export A=base\n"
    )
    (tmp_path / "lines.sh").write_text("export SOURCED=1\n")
    (tmp_path / "x.setup").write_text('export A="$A and own" HOME=/elsewhere\necho a step\n')
    spec = JobSpec(
        kind="notebook",
        command=("/bin/sh", "-c", 'echo "$A, $HOME"; exit 6'),
        cluster="here",
        edf=str(tmp_path / "x.toml"),
        directory=str(tmp_path),
        sources=("host",),
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GIPFEL_RUNS": str(tmp_path / "runs"),
        "GIPFEL_JOB_ID": "7",
        JOB_VARIABLE: spec.model_dump_json(),
    }
    done = subprocess.run(
        [sys.executable, "-m", "gipfel_cluster.job"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (6, "base and own, /elsewhere\n")
    assert "a step" in done.stderr
    record = json.loads((tmp_path / "runs/here-7/record.json").read_text())
    files = [str(tmp_path / "base.setup"), str(tmp_path / "x.setup")]
    assert record["edf"]["setup"] == files
    assert [each[:7] for each in record["edf"]["setup_digests"]] == ["sha256:"] * 2
    assert record["exit_status"] == 6
