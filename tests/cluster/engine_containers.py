"""Containers that the tests of engines start as a plain user, and the images for them."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from machine_programs import add_programs
from unix_users import UnixUser, unix_user

import gipfel_cluster
from gipfel_cluster.edf import Edf, Mount
from gipfel_cluster.engines import ContainerRequest, Engine, Invocation
from gipfel_cluster.engines.bubblewrap import Bubblewrap
from gipfel_cluster.engines.devices import Hardware
from gipfel_cluster.engines.podman import Podman

LIMIT_S = 60
PROGRAMS = ("sh", "cat", "id", "ls", "env", "touch", "sleep", "mkdir", "rm", "stat", "readlink", "kill")
LAUNCHER = (
    "import runpy, sys; sys.argv[:] = sys.argv[3:]; "
    "runpy.run_path({!r} + '/gipfel_cluster/engines/sandbox/start.py', run_name='__main__')"
)
#: Settings of a site for this machine: crun refuses its hybrid cgroups, and it may not raise limits.
CONTAINERS_CONF = '[engine]\nruntime = "runc"\n'
ENGINES = {"bubblewrap": Bubblewrap, "podman": Podman}
#: Begins a shell script that gets a signal after its line "ready". podman 4 forwards signals only some time
#: after it has started the command; a SIGTERM before ends podman with status 0, and the command continues.
READY = "sleep 1; echo ready; "
ODD = "a  \"b\" 'c' $HOME ${HOME} `x` \\n ü€𝄞 \t# ; | & * ? ~ %s = ,:"


def make_root(root: Path) -> None:
    """Unpack a small image as Enroot leaves one: a few programs, variables, and an entry point."""
    for folder in ("usr/bin", "usr/lib64", "usr/lib", "etc", "opt", "var", "srv/image"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "lib64", "lib"):
        (root / link).symlink_to(f"usr/{link}")
    add_programs(root, PROGRAMS)
    (root / "etc/environment").write_text(
        "PATH=/usr/bin:/of/the/image\nIMAGE=i\nBOTH=i\nEDF=i\nBOUND=i\nGONE=i\n"
    )
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/rc").write_text('cd /srv/image || exit 1\nENTERED=yes\nexport ENTERED\nexec "$@"\n')
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "opt/marker").write_text("of the image\n")


@pytest.fixture(scope="module")
def engine_place() -> Iterator[Path]:
    """A folder that every user may read, with images and the package."""
    folder = Path(tempfile.mkdtemp(prefix="gipfel-run-", dir="/tmp"))
    folder.chmod(0o755)
    package = Path(gipfel_cluster.__path__[0])
    for part in ("__init__.py", "environment.py", "namespaces.py", "engines"):
        source, target = package / part, folder / "python/gipfel_cluster" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    make_root(folder / "root")
    (folder / "data").mkdir()
    (folder / "data/hello").write_text("of the data\n")
    for source, image in (("root", "image.sqsh"), ("data", "data.sqsh")):
        command = ["mksquashfs", folder / source, folder / image, "-quiet", "-no-progress", "-all-root"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def engine_user(fuse: None) -> Iterator[UnixUser]:
    """A plain user with subordinate ids of its own, as useradd gives them."""
    homes = Path(tempfile.mkdtemp(prefix="gipfel-h-", dir="/tmp"))
    homes.chmod(0o755)
    with unix_user("e", homes) as user:
        user.write(".config/containers/containers.conf", CONTAINERS_CONF)
        yield user
    shutil.rmtree(homes, ignore_errors=True)


class Containers:
    """Starts containers of one engine as a plain user, and ends what a failed test leaves."""

    def __init__(self, place: Path, user: UnixUser, engine: str, image: str) -> None:
        self.place, self.user, self.engine, self.image = place, user, engine, image
        self.scratch = Path(tempfile.mkdtemp(prefix="g-", dir="/tmp"))
        user.own(self.scratch, 0o700)
        self.hardware = Hardware(cdi_directories=(str(self.scratch / "cdi"),), libraries=lambda: "")
        self.become = ("setpriv", f"--reuid={user.uid}", f"--regid={user.uid}", "--clear-groups")
        #: Programs that may outlive a container.
        self.lasting: tuple[str, ...] = ()
        self.variables: dict[str, str] = {}
        self.processes: list[subprocess.Popen[bytes]] = []

    def rendered(
        self,
        command: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        environment: dict[str, str] | None = None,
        protected: tuple[str, ...] = (),
        workdir: str = "",
        **edf: object,
    ) -> Invocation:
        request = ContainerRequest(
            edf=Edf.model_validate({"name": "test", "path": None, "image": self.image, **edf}),
            command=tuple(command),
            mounts=tuple(mounts),
            environment={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": str(self.user.home),
                "USER": self.user.name,
                "MARK": str(self.scratch),
                **self.variables,
                **(environment or {}),
            },
            protected=protected,
            workdir=workdir,
            scratch=str(self.scratch),
        )
        launcher = ("/usr/bin/python3", "-c", LAUNCHER.format(str(self.place / "python")))
        return self.made().render(request, python=launcher)

    def made(self) -> Engine:
        """Return the engine as another user's process would create it."""
        if self.engine == "podman":
            return Podman(self.hardware, user=lambda: self.user.uid)
        return Bubblewrap(self.hardware)

    def start(self, *command: str, **options: object) -> subprocess.Popen[bytes]:
        invocation = self.rendered(command, **options)
        become = self.become
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            [*become, *invocation.argv], env=invocation.environment, cwd="/", start_new_session=True, **pipes
        )
        self.processes.append(process)
        return process

    def run(self, *command: str, stdin: bytes = b"", **options: object) -> tuple[int, str, str]:
        process = self.start(*command, **options)
        out, err = process.communicate(stdin, timeout=LIMIT_S)
        return process.returncode, out.decode(), err.decode()

    def shell(self, script: str, **options: object) -> tuple[int, str, str]:
        return self.run("sh", "-c", script, **options)

    def folder(self, name: str) -> Path:
        folder = self.scratch / name
        folder.mkdir(parents=True)
        (folder / "file").write_text("outside\n")
        return self.user.own(folder, 0o755)

    def left(self) -> list[str]:
        """The user's processes, and mounts of this test in any namespace."""
        found = [f"process {pid}" for pid in self.user.processes() if _name(pid) not in self.lasting]
        for entry in Path("/proc").glob("[0-9]*/mountinfo"):
            try:
                found += [str(entry)] if str(self.scratch) in entry.read_text() else []
            except OSError:
                continue
        return found

    def wait_until_gone(self) -> None:
        end = time.monotonic() + 15
        while left := self.left():
            assert time.monotonic() < end, left
            time.sleep(0.05)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        try:
            self.wait_until_gone()
        finally:
            for pid in self.user.processes():
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.scratch, ignore_errors=True)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
