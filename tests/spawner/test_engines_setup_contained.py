"""Set-up steps that really run in containers, as root and as a plain user, and in a job."""

import json
import os
import shutil
import subprocess
import sys

import bubblewrap_sandboxes
import pytest

from gipfel_cluster.edf import Edf, Mount
from gipfel_cluster.engines import ContainerRequest
from gipfel_cluster.engines.bubblewrap import Bubblewrap
from gipfel_cluster.engines.setup import SETUP_DIRECTORIES, with_setup
from gipfel_cluster.job import JOB_VARIABLE, JobSpec
from gipfel_cluster.model import GipfelError

shared = bubblewrap_sandboxes.shared
needs_bubblewrap = pytest.mark.skipif(
    Bubblewrap().unavailable_reason() is not None, reason=str(Bubblewrap().unavailable_reason())
)


@pytest.fixture(params=["root", "plain"])
def sandboxes(request, shared):
    user = 0 if request.param == "root" else bubblewrap_sandboxes.PLAIN_USER
    if os.geteuid() != 0:
        if request.param == "root":
            pytest.skip("needs root")
        user = os.geteuid()
    sandboxes = bubblewrap_sandboxes.Sandboxes(shared, user)
    yield sandboxes
    sandboxes.end()


class Contained:
    """Runs commands with steps in containers."""

    def __init__(self, sandboxes: bubblewrap_sandboxes.Sandboxes) -> None:
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
    bubblewrap_sandboxes.make_root(bash)
    program = os.path.realpath(shutil.which("bash"))
    shutil.copy(program, bash / "usr/bin/bash")
    for library in bubblewrap_sandboxes.libraries(program):
        folder = bash / os.path.realpath(os.path.dirname(library)).lstrip("/")
        shutil.copy(os.path.realpath(library), folder / os.path.basename(library))
    shell_less = shared / "no-shell"
    bubblewrap_sandboxes.make_root(shell_less)
    (shell_less / "usr/bin/sh").unlink()
    for folder in (bash, shell_less):
        if shutil.which("mksquashfs") and shutil.which("squashfuse"):
            bubblewrap_sandboxes.make_squashfs(folder, shared / f"{folder.name}.sqsh")
    subprocess.run(["chmod", "-R", "a+rX", shared], check=True)
    return shared


@needs_bubblewrap
@pytest.mark.parametrize("name", ["root", "image.sqsh", "bash", "bash.sqsh"])
@pytest.mark.parametrize("writable", [True, False])
def test_steps_run_in_a_container(contained, images, name, writable):
    image = bubblewrap_sandboxes.require(images / name)
    text = 'export A="$(cat /opt/marker) ${BASH_VERSION:+bash}"\ncat\n'
    result = contained.run(
        image, ["sh", "-c", 'echo "$A-$B"; cat; exit 9'], text, "export B=2\n", stdin=b"in", writable=writable
    )
    assert result == (9, f"of the image {'bash' if 'bash' in name else ''}-2\nin", "")


@needs_bubblewrap
@pytest.mark.parametrize("name", ["image.sqsh", "bash"])
def test_a_failing_step_in_a_container_names_the_file_of_the_host(contained, images, name):
    status, out, err = contained.run(
        bubblewrap_sandboxes.require(images / name), ["env"], "true\n", "true\n(exit 11)\n"
    )
    assert (status, out) == (11, "")
    where = f"{contained.folder}/1.setup{', line 2' if name == 'bash' else ''}"
    assert err == f"gipfel: {where}: a set-up step ended with status 11, so the command was not started.\n"


@needs_bubblewrap
def test_steps_are_read_only_in_the_container(contained, images):
    text = f"(echo x >> {SETUP_DIRECTORIES[0]}/0-0.setup) 2>/dev/null && export WRITTEN=1\n:\n"
    status, out, _ = contained.run(bubblewrap_sandboxes.require(images / "bash"), ["env"], text)
    assert status == 0
    assert "WRITTEN" not in out


@needs_bubblewrap
def test_a_mount_over_run_does_not_hide_them(contained, images):
    (contained.folder / "run").mkdir()
    mount = Mount(source=str(contained.folder / "run"), destination="/run")
    result = contained.run(
        bubblewrap_sandboxes.require(images / "root"),
        ["sh", "-c", "echo $A"],
        "export A=1\n",
        mounts=(mount,),
    )
    assert result == (0, "1\n", "")


@needs_bubblewrap
@pytest.mark.parametrize("name", ["no-shell", "no-shell.sqsh"])
def test_an_image_without_a_shell_is_refused_in_one_line(contained, images, name):
    with pytest.raises(GipfelError, match="has no /bin/sh, which the set-up steps") as raised:
        contained.run(bubblewrap_sandboxes.require(images / name), ["env"], "true\n")
    assert "\n" not in str(raised.value)
    # One that a mount may bring can't be refused before it is there.
    (contained.folder / "bin").mkdir()
    mount = Mount(source=str(contained.folder / "bin"), destination="/usr/bin")
    contained.run(bubblewrap_sandboxes.require(images / name), ["env"], "true\n", mounts=(mount,))


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
