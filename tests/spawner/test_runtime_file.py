"""A runtime that is one file: built, kept, replaced, and started by a plain user in images of every kind."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from images import SUITES
from kept_runtime import kernel_runtime_for_tests

from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import ContainerRequest, engine_for
from gipfel_cluster.engines.bubblewrap import Bubblewrap
from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime, build_runtime
from gipfel_cluster.runtime.build import FILE_PREFIX
from gipfel_cluster.runtime.installation import Installation, make_squashfs, remove_old_runtimes

PLAIN_USER = 54321
PACKAGES = Path(__file__).parents[2] / "spawner"
# A plain user can't execute an interpreter below /root, so the sandbox runs on the machine's own.
LAUNCHER = (
    "import runpy, sys; sys.argv[:] = sys.argv[3:]; "
    "runpy.run_path({!r} + '/gipfel_cluster/engines/sandbox/start.py', run_name='__main__')"
)
# Every library that is loaded must be the runtime's own.
PROBE = """
import json, ssl, sys, jupyterlab.labapp, zmq, pyarrow
with open("/proc/self/maps") as maps:
    libraries = {line.split(None, 5)[5].strip() for line in maps if ".so" in line}
program = open(sys.prefix + "/bin/jupyter-lab")
kernel = open(sys.prefix + "/share/jupyter/kernels/python3/kernel.json")
print(json.dumps([sys.executable, sorted(libraries), program.readline(), kernel.read()]))
"""
MUSL_PROGRAM = '#include <stdio.h>\nint main(void) { puts("of the image"); return 0; }\n'

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")
needs_engine = pytest.mark.skipif(
    Bubblewrap().unavailable_reason() is not None or shutil.which("squashfuse") is None,
    reason="bubblewrap or squashfuse is not installed",
)


def quiet(_: str) -> None:
    pass


def described(tree: Path, **changes: str) -> Path:
    """A folder that says it is a runtime, and holds nothing else."""
    tree.mkdir(exist_ok=True)
    facts = {"prefix": FILE_PREFIX, "version": "1", "arch": platform.machine(), "key": "k"} | changes
    (tree / "runtime.json").write_text(json.dumps(facts | {"distributions": {}}))
    return tree


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    # Not pytest's folder: that one is closed to the plain user who starts the runtime.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="gipfel-file-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    if not Path("/dev/fuse").exists():
        pytest.skip("This machine has no /dev/fuse.")
    if os.geteuid() == 0:
        Path("/dev/fuse").chmod(0o666)
    # The one of `tests/cluster`: to copy, compile and compress another takes two minutes of a core.
    return kernel_runtime_for_tests(tuple(SUITES))


def started(runtime: Runtime, image: Path, base: Path, command: Sequence[str]) -> str:
    """Return what a command prints in an image, started by a plain user."""
    scratch = Path(tempfile.mkdtemp(dir=base))
    user = PLAIN_USER if os.geteuid() == 0 else os.geteuid()
    os.chown(scratch, user, -1)
    edf = Edf(name="any", path=None, image=str(image))
    request = ContainerRequest(
        edf=edf,
        command=tuple(command),
        mounts=(runtime.mount,),
        environment={"HOME": "/home/somebody", "PATH": "/usr/bin:/bin", "USER": "somebody"},
        scratch=str(scratch),
    )
    launcher = (
        (sys.executable,)
        if user == os.geteuid()
        else ("/usr/bin/python3", "-c", LAUNCHER.format(str(PACKAGES)))
    )
    invocation = engine_for(edf, "bubblewrap").render(request, python=launcher)
    words = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*words, *invocation.argv],
        env=dict(invocation.environment), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def empty_image(folder: Path) -> None:
    """No libc, no shell, no program at all."""
    (folder / "data").mkdir(parents=True)


def static_image(folder: Path) -> None:
    """A shell that needs no libc, as in the smallest images."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox-static is not installed")
    (folder / "bin").mkdir(parents=True)
    shutil.copy(busybox, folder / "bin/busybox")
    (folder / "bin/sh").symlink_to("busybox")


def musl_image(folder: Path) -> None:
    """As Alpine's: musl's loader, which is its libc too, and a program that needs it."""
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-tools is not installed")
    static_image(folder)
    loader = next(Path("/lib").glob("ld-musl-*.so.1"))
    (folder / "lib").mkdir()
    shutil.copy(loader, folder / "lib" / loader.name)
    compiler = ["musl-gcc", "-x", "c", "-", "-o", str(folder / "bin/hello")]
    subprocess.run(compiler, input=MUSL_PROGRAM, text=True, check=True)
    shown = subprocess.run(["ldd", folder / "bin/hello"], capture_output=True, text=True).stdout
    assert "libc.so.6" not in shown


@needs_engine
@pytest.mark.parametrize("make", [empty_image, static_image, musl_image])
def test_it_starts_in_images_of_any_libc_and_of_none(
    runtime: Runtime, base: Path, make: Callable[[Path], None]
) -> None:
    folder = base / make.__name__
    make(folder)
    image = base / f"{make.__name__}.sqsh"
    make_squashfs(folder, image)
    command = [runtime.python, "-I", "-c", PROBE]
    executable, libraries, program, kernel = json.loads(started(runtime, image, base, command))
    assert executable == runtime.python
    assert program == f"#!{runtime.python} -I\n"
    assert sys.prefix not in kernel
    assert f"{runtime.prefix}/lib/libc.so.6" in libraries
    assert [each for each in libraries if not each.startswith(f"{runtime.prefix}/")] == []
    if make is musl_image:
        call = "import subprocess; print(subprocess.check_output('/bin/hello', text=True))"
        assert started(runtime, image, base, [runtime.python, "-I", "-c", call]).strip() == "of the image"


def test_a_file_has_the_same_description_as_a_directory(runtime: Runtime) -> None:
    file = Path(runtime.root)
    assert (file.suffix, runtime.prefix) == (".sqsh", FILE_PREFIX)
    assert runtime == Runtime.load(runtime.root)
    assert runtime.mount.flags == ("sqsh",)
    assert runtime.host_python is None
    assert file.stat().st_mode & 0o777 == 0o644
    # A file that was replaced is kept for those who have it open.
    beside = {path.name for path in file.parent.glob(f".{file.name}.*") if ".old-" not in path.name}
    assert beside == {f".{file.name}.lock"}


def test_a_second_build_keeps_the_file(runtime: Runtime) -> None:
    file = Path(runtime.root)
    for _ in range(4):  # a source that someone edits meanwhile is another runtime
        told: list[str] = []
        before = file.stat().st_ino
        build_runtime(file, progress=told.append)
        if not told:
            break
    assert (told, file.stat().st_ino) == ([], before)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "runtime.sqsh"
    make_squashfs(described(tmp_path / "tree", arch="sparc64"), file)
    with pytest.raises(GipfelError, match=f"is for sparc64, this machine is {platform.machine()}"):
        Runtime.load(file)


@pytest.mark.parametrize("kind", ["text", "cut off", "another image"])
def test_a_file_that_is_no_runtime_is_refused_and_never_replaced(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "runtime.sqsh"
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/thesis").write_text("mine")
    make_squashfs(tmp_path / "tree", file)
    if kind == "text":
        file.write_text("mine")
    if kind == "cut off":
        file.write_bytes(file.read_bytes()[:200])
    before = file.read_bytes()
    with pytest.raises(GipfelError) as caught:
        Runtime.load(file)
    assert "\n" not in str(caught.value)
    with pytest.raises(GipfelError, match="not a runtime"), Installation.begin(file, progress=quiet):
        pytest.fail("was let in")
    assert file.read_bytes() == before


def test_a_replaced_file_is_kept_while_it_is_open(tmp_path: Path) -> None:
    file = tmp_path / "runtime.sqsh"
    for key in ("old", "new"):
        with Installation.begin(file, progress=quiet) as place:
            make_squashfs(described(place.building / "tree", key=key), place.building / "file")
            place.publish(place.building / "file")
    (earlier,) = tmp_path.glob(".runtime.sqsh.old-*")
    # As squashfuse does.
    with subprocess.Popen(["sleep", "60"], stdin=earlier.open("rb")) as holder:
        assert remove_old_runtimes(file, retention_seconds=-5) == (earlier,)
        holder.terminate()
    assert remove_old_runtimes(file, retention_seconds=-5) == ()
    assert not earlier.exists()
    assert file.exists()


def test_a_host_starts_a_folder_at_its_prefix_and_no_other(tmp_path: Path) -> None:
    tree = described(tmp_path / "tree", prefix=str(tmp_path / "tree"))
    (tree / "bin").mkdir()
    (tree / "bin/python3").symlink_to(sys.executable)
    assert Runtime.load(tree).host_python == f"{tree}/bin/python3"
    assert Runtime.load(described(tree, prefix="/opt/elsewhere")).host_python is None
