"""Containers that tests of bubblewrap start as root and as a plain user, and the small images for them."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from machine_programs import add_programs, libraries

import gipfel_cluster
from gipfel_cluster.edf import Edf
from gipfel_cluster.engines import ContainerRequest, engine_for

PLAIN_USER = 54321
PROGRAMS = ("sh", "cat", "id", "ls", "env", "touch", "sleep", "mkdir", "rm", "stat")
# A plain user can't execute an interpreter below /root, so the sandbox runs on the machine's own.
LAUNCHER = (
    "import runpy, sys; sys.argv[:] = sys.argv[3:]; "
    "runpy.run_path({!r} + '/gipfel_cluster/engines/sandbox/start.py', run_name='__main__')"
)
VARIABLES = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody", "USER": "somebody"}


def make_root(root: Path) -> None:
    """Unpack a small image: a few programs of this machine and the libraries that they need."""
    for folder in ("usr/bin", "usr/lib64", "etc", "opt", "var"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "lib64", "lib"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "usr/lib").mkdir()
    (root / "var/run").symlink_to("/run")
    add_programs(root, PROGRAMS)
    (root / "etc/environment").write_text(
        'IMAGE="of the image"\nBOTH=image\nEDF=image\nBOUND=image\nHUB_X=image\n'
    )
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/resolv.conf").symlink_to("/run/nowhere/resolv.conf")
    (root / "opt/marker").write_text("of the image\n")


def make_squashfs(folder: Path, image: Path) -> Path:
    command = ["mksquashfs", folder, image, "-quiet", "-no-progress", "-all-root"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return image


@pytest.fixture(scope="module")
def shared():
    """A folder that every user may read, with the images, the package and a runtime."""
    folder = Path(tempfile.mkdtemp(prefix="gipfel-engine-", dir="/tmp"))
    folder.chmod(0o755)
    package = Path(gipfel_cluster.__path__[0])
    for part in ("__init__.py", "environment.py", "namespaces.py", "engines"):
        source, target = package / part, folder / "python/gipfel_cluster" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    make_root(folder / "root")
    if shutil.which("mksquashfs") and shutil.which("squashfuse"):
        make_squashfs(folder / "root", folder / "image.sqsh")
        (folder / "data").mkdir()
        (folder / "data/hello").write_text("of the data\n")
        make_squashfs(folder / "data", folder / "data.sqsh")
    (folder / "program").mkdir()
    loader = None
    for file in [os.path.realpath(shutil.which("cat")), *libraries(shutil.which("cat"))]:
        shutil.copy(os.path.realpath(file), folder / "program" / os.path.basename(file))
        loader = os.path.basename(file) if "ld-" in os.path.basename(file) else loader
    (folder / "program/loader").symlink_to(loader)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["root", "plain"])
def user(request):
    """The id that the sandbox runs as."""
    if request.param == "plain":
        if os.geteuid() != 0:
            return os.geteuid()
        if not shutil.which("setpriv"):
            pytest.skip("setpriv is not installed")
        return PLAIN_USER
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return 0


@pytest.fixture(params=["image.sqsh", "root"])
def image(request, shared):
    return require(shared / request.param)


def require(image: Path) -> str:
    if not image.exists():
        pytest.skip("mksquashfs or squashfuse is not installed")
    if image.suffix and not (
        os.access("/dev/fuse", os.R_OK | os.W_OK) and os.stat("/dev/fuse").st_mode & 0o6
    ):
        pytest.skip("/dev/fuse may not be used by a plain user")
    return str(image)


class Sandboxes:
    """Starts containers as one user and ends what a failed test leaves."""

    def __init__(self, shared: Path, user: int) -> None:
        self.shared, self.user = shared, user
        self.scratch = Path(tempfile.mkdtemp(prefix="g-", dir="/tmp"))
        os.chown(self.scratch, user, user)
        self.variables = VARIABLES | {"MARK": str(self.scratch)}
        self.processes: list[subprocess.Popen[bytes]] = []

    def invocation(self, image, command, *, mounts=(), environment=None, protected=(), workdir="", **edf):
        request = ContainerRequest(
            edf=Edf(name="test", path=None, image=image, **edf),
            command=tuple(command),
            mounts=tuple(mounts),
            environment=self.variables | (environment or {}),
            protected=protected,
            workdir=workdir,
            scratch=str(self.scratch),
        )
        python = "/usr/bin/python3" if os.geteuid() == 0 else sys.executable
        launcher = (python, "-c", LAUNCHER.format(str(self.shared / "python")))
        invocation = engine_for(request.edf).render(request, python=launcher)
        become = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return [*(become if self.user != os.geteuid() else []), *invocation.argv], invocation.environment

    def start(self, image, command, *, prefix=(), **options):
        argv, environment = self.invocation(image, command, **options)
        process = subprocess.Popen(
            [*prefix, *argv],
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def run(self, image, *command, stdin=b"", **options):
        process = self.start(image, command, **options)
        out, err = process.communicate(stdin, timeout=60)
        return process.returncode, out.decode(), err.decode()

    def shell(self, image, script, **options):
        return self.run(image, "sh", "-c", script, **options)

    def left(self) -> list[int]:
        """Find the processes that are of our containers or still have a mount of theirs."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                text = b"".join((entry / name).read_bytes() for name in ("mountinfo", "environ", "cmdline"))
            except OSError:
                continue
            if str(self.scratch).encode() in text:
                found.append(int(entry.name))
        return found

    def end(self):
        for process in self.processes:
            process.kill()
            process.communicate()
        gone(self.left)
        shutil.rmtree(self.scratch)


def gone(left, limit=10.0):
    end = time.monotonic() + limit
    while rest := left():
        assert time.monotonic() < end, f"still there: {rest}"
        time.sleep(0.02)


@pytest.fixture
def sandboxes(shared, user):
    sandboxes = Sandboxes(shared, user)
    yield sandboxes
    sandboxes.end()
