"""User who builds images on the cluster: home directory, Containerfile with its tar file, and the command."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_containers import make_root
from one_machine import OneMachine
from unix_users import UnixUser

from gipfel_cluster.engines.podman import Podman

#: Marks of all tests of a file that builds images.
MARKS = [
    pytest.mark.cluster,
    pytest.mark.skipif(Podman().unavailable_reason() is not None, reason=str(Podman().unavailable_reason())),
]
_LIMIT_S = 150
STATUS = """\
Package: tiny
Status: install ok installed
Version: 1.2-3
Source: tiny-source (1.2)
"""
_CONTAINERFILE = """\
FROM scratch
ADD base.tar /
ARG COLOUR
ENV COLOUR="$COLOUR blue" SPACED=" a "
WORKDIR /opt
ENTRYPOINT ["env", "ENTERED=yes"]
RUN mkdir -p /var/log && env > /var/log/dpkg.log && cat /proc/uptime > /opt/when && rm /opt/when
RUN touch /opt/made && mkdir /run/x
"""
Gipfel = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def home(engine_user: UnixUser, engine_place: Path) -> Path:
    """The user's home directory with a key, and a directory of a Containerfile and its tar file."""
    root = engine_place / "buildable"
    make_root(root)
    (root / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(STATUS)
    (root / "proc").mkdir()
    (root / "run").mkdir()
    engine_user.write("context/Containerfile", _CONTAINERFILE)
    tar = engine_user.home / "context/base.tar"
    subprocess.run(["tar", "-C", root, "--mtime=@0", "--sort=name", "-cf", tar, "."], check=True)
    engine_user.own(tar)
    for name in ("id_ed25519", "other"):
        path = engine_user.home / ".ssh" / name
        engine_user.write(f".ssh/{name}.note", "")
        engine_user.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
    return engine_user.home


@pytest.fixture(scope="module")
def gipfel(engine_user: UnixUser, runtime: Path, home: Path, cluster: OneMachine) -> Gipfel:
    """The command of the runtime, typed by the user in the home directory, or on a node with `node`."""

    def call(
        *words: str, node: str = "", limit_s: int = _LIMIT_S, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        on_node = ["srun", "--quiet", "--nodelist", node] if node else []
        more = [f"{name}={value}" for name, value in variables.items()]
        argv = [*user_environment(cluster, home), *more, *on_node, f"{runtime}/bin/gipfel", *words]
        return engine_user.run(*argv, limit_s=limit_s)

    return call


def user_environment(cluster: OneMachine, home: Path) -> list[str]:
    variables = {**cluster.environment, "HOME": str(home), "PATH": "/usr/bin:/bin:/usr/sbin"}
    return ["env", "-u", "XDG_RUNTIME_DIR", f"--chdir={home}", *(f"{k}={v}" for k, v in variables.items())]
