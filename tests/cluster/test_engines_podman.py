"""Images in podman's storage, as a plain user: an OCI image in a local store replaces a registry's."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_containers import ODD, READY, Containers
from images import Images
from unix_users import UnixUser

from gipfel_cluster.edf import Mount
from gipfel_cluster.engines.podman import Podman
from gipfel_cluster.job import JOB_VARIABLE, JobSpec
from gipfel_cluster.runtime import Runtime
from gipfel_extension.cli.main import main

IMAGE = "localhost#gipfel/small:1"
CHANGES = (
    "ENV IMAGE=i BOTH=i GONE=i EDF=i",
    'ENTRYPOINT ["/bin/sh", "/etc/rc"]',
    'CMD ["id"]',
    "WORKDIR /opt",
)

#: A service of one part that answers each request with its parameter.
BOARD = """\
name: board
title: A board
parameters: {word: {}}
parts:
  web:
    command: ["${python}", -c, "import http.server as h,socketserver as s,sys;\
R=type('R',(h.BaseHTTPRequestHandler,),{'address_string':lambda self:'','do_GET':lambda self:\
(self.send_response(200),self.end_headers(),self.wfile.write(sys.argv[2].encode()))});\
s.UnixStreamServer(sys.argv[1],R).serve_forever()", "${socket}", "${parameters.word}"]
resources: {cpus: 1, memory: 128M}
"""
#: Play a manifest, print what its pod answers within 30 s, and remove the pod.
PLAY = """\
manifest=$1 python=$2; shift 2
ip link set lo up
trap '"$@" kube down "$manifest" >/dev/null' EXIT
"$@" kube play "$manifest" >&2 || exit
for _ in $(seq 150); do
  "$python" -c "$FETCH" 2>/dev/null && exit
  sleep 0.2
done
exit 1
"""
FETCH = 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:8000/", timeout=2).read().decode())'
RLIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="Users are made by root only."),
    pytest.mark.skipif(Podman().unavailable_reason() is not None, reason=str(Podman().unavailable_reason())),
]


@pytest.fixture(scope="module")
def stored(engine_place: Path, engine_user: UnixUser) -> str:
    """The image in the user's store, with an OCI configuration."""
    archive = engine_place / "image.tar"
    subprocess.run(["tar", "-C", engine_place / "root", "-cf", archive, "."], check=True)
    archive.chmod(0o644)
    changes = [word for change in CHANGES for word in ("--change", change)]
    variables = [f"HOME={engine_user.home}", f"XDG_RUNTIME_DIR={engine_user.home}"]
    command = ["podman", "import", *changes, str(archive), "localhost/gipfel/small:1"]
    done = engine_user.run("env", *variables, *command, limit_s=120)
    assert done.returncode == 0, done.stderr
    # What keeps podman's namespaces is not of a container.
    for pid in engine_user.processes():
        os.kill(pid, signal.SIGKILL)
    return IMAGE


@pytest.fixture
def containers(engine_place: Path, engine_user: UnixUser, stored: str) -> Iterator[Containers]:
    containers = Containers(engine_place, engine_user, "podman", stored)
    # podman keeps one process for the user's namespaces, as long as it pleases.
    containers.lasting = ("podman", "catatonit")
    containers.variables = {"XDG_RUNTIME_DIR": str(engine_user.home)}
    yield containers
    containers.end()


def test_variables_folder_and_entry_point(containers):
    options = {
        "environment": {"HOST": ODD, "BOTH": "h", "GONE": "h", "EDF": "h", "HUB_TOKEN": "h"},
        "env": {"EDF": ODD, "GONE": "", "PATH": "/bin:/of/the/edf", "HUB_TOKEN": "e"},
        "protected": ("HUB_*",),
    }
    command = [
        "sh",
        "-c",
        'printf "%s\\n" "$HOST" "$BOTH" "${GONE-none}" "$EDF" "$PATH" "$HUB_TOKEN" "${ENTERED-none}"',
    ]
    status, out, err = containers.run(*command, **options)
    assert status == 0, err
    assert out.split("\n") == [ODD, "h", "none", ODD, "/bin:/of/the/edf", "h", "none", ""]
    status, out, err = containers.run(*command, **options, entrypoint=True)
    assert (status, out.split("\n")[-2]) == (0, "yes"), err
    assert containers.shell("pwd", workdir="/srv")[1] == "/srv\n"
    # podman's own store is asked, and no registry, where the scheme says so.
    status, out, err = containers.shell("echo $IMAGE", image="podman://gipfel/small:1", env={"PATH": ""})
    assert (status, out[:1]) == (0, "i"), err
    status, _, err = containers.shell("true", image="podman://gipfel/small:2")
    assert (status, "gipfel/small:2" in err) == (125, True), err


def test_the_user_is_the_same_and_the_root_is_writable_or_not(containers, engine_user):
    status, out, err = containers.shell("id -u; touch /tmp/new && echo new")
    assert (status, out) == (0, f"{engine_user.uid}\nnew\n"), err
    status, _, err = containers.shell("touch /etc/new", writable=False)
    assert status != 0
    assert "Read-only" in err


def test_mounts_and_a_squashfs_file_beside_an_image_of_a_registry(containers, engine_place):
    folder = containers.folder("with a space: and a colon")
    status, out, err = containers.shell(
        "cat /rw/file /ro/file /sqsh/hello; echo new >/rw/new; touch /ro/no 2>/dev/null && echo ro; exit 0",
        mounts=[
            Mount(source=str(folder), destination="/rw"),
            Mount(source=str(folder), destination="/ro", flags=("ro", "private")),
            Mount(source=str(engine_place / "data.sqsh"), destination="/sqsh", flags=("sqsh",)),
        ],
    )
    assert (status, out) == (0, "outside\noutside\nof the data\n"), err
    assert (folder / "new").stat().st_uid == containers.user.uid


@pytest.mark.parametrize("squashed", [False, True])
def test_status_signals_and_input(containers, engine_place, squashed):
    data = Mount(source=str(engine_place / "data.sqsh"), destination="/sqsh", flags=("sqsh",))
    mounts = [data] if squashed else []
    assert containers.run("cat", stdin=b"said", mounts=mounts)[:2] == (0, "said")
    assert containers.shell("exit 42", mounts=mounts)[0] == 42
    process = containers.start("sh", "-c", f"{READY}exec sleep 300", mounts=mounts)
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    containers.wait_until_gone()


def test_a_device_is_the_only_one_beside_the_basic_ones(containers):
    status, out, err = containers.shell("ls /dev", devices=["/dev/fuse"])
    assert status == 0, err
    assert "fuse" in out.split()
    assert "loop-control" not in out.split()


def test_a_job_runs_by_podman(engine_place: Path, engine_user: UnixUser, runtime: Path):
    edf = engine_user.write("boxed.toml", f'image = "{engine_place}/image.sqsh"\n[env]\nA = "b c"\n')
    spec = JobSpec(
        kind="notebook",
        command=("sh", "-c", 'echo "$A $IMAGE $GIPFEL_ENGINE"; id -u; ls -d "$GIPFEL_SOCKETS"; exit 7'),
        cluster="here",
        edf=str(edf),
        engine="podman",
        runtime=str(runtime),
        sources=("host",),
    )
    variables = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(engine_user.home),
        "USER": engine_user.name,
        "GIPFEL_JOB_ID": "7",
        JOB_VARIABLE: spec.model_dump_json(),
    }
    python = Runtime.load(runtime).host_python
    assert python
    words = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), python]
    done = engine_user.run(*words, "-m", "gipfel_cluster.job", limit_s=120)
    assert done.returncode == 7, done.stderr
    first, uid, sockets = done.stdout.splitlines()
    assert (first, uid) == ("b c i podman", str(engine_user.uid))
    assert not Path(sockets).exists()
    record = json.loads((engine_user.home / ".gipfel/runs/here-7/record.json").read_text())
    assert (record["engine"], record["exit_status"], record["image"]["digest"]) == ("podman", 7, None)
    assert not engine_user.processes()


@pytest.fixture
def own_podman(
    tmp_path: Path, shared_folder: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], str]:
    """Podman with a store of its own that has an image with Python, and the image's name with its digest."""
    root, archive, configuration = tmp_path / "root", tmp_path / "image.tar", tmp_path / "containers.conf"
    subprocess.run(
        ["unsquashfs", "-q", "-n", "-d", root, images.python], check=True, stdout=subprocess.DEVNULL
    )
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    # More than this process may have can't be set: podman would ask for the limits of a system's service.
    limits = {name: min(resource.getrlimit(number)[1], 1024) for name, number in RLIMITS.items()}
    ulimits = ", ".join(f'"{name}={limit}:{limit}"' for name, limit in limits.items())
    configuration.write_text(f'[engine]\nruntime = "runc"\n[containers]\ndefault_ulimits = [{ulimits}]\n')
    monkeypatch.setenv("CONTAINERS_CONF", str(configuration))
    # Its sockets need a short path.
    podman = ["podman", "--root", str(shared_folder / "store"), "--runroot", str(shared_folder / "podman")]
    path = "ENV PATH=/usr/local/bin:/usr/bin:/bin"
    command = [*podman, "import", "--quiet", "--change", path, str(archive), "localhost/gipfel/python:1"]
    subprocess.run(command, check=True, capture_output=True)
    command = [*podman, "image", "inspect", "--format", "{{.Digest}}", "localhost/gipfel/python:1"]
    digest = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return podman, f"localhost/gipfel/python@{digest}"


def test_a_rendered_service_answers_in_a_pod(tmp_path: Path, own_podman: tuple[list[str], str]):
    podman, image = own_podman
    (tmp_path / "board.yaml").write_text(BOARD)
    arguments = [str(tmp_path / "board.yaml"), "--to", "kubernetes", "-o", str(tmp_path / "out")]
    assert main(["service", "render", *arguments, "--image", image, "-p", "word", 'a: b # "on"']) == 0
    names = ("configmap", "workload", "service")
    manifest = tmp_path / "all.yaml"
    manifest.write_text("---\n".join((tmp_path / f"out/{name}.yaml").read_text() for name in names))
    script = tmp_path / "play.sh"
    script.write_text(PLAY)
    # In a network namespace of its own, which has podman's bridge and firewall, too.
    command = ["unshare", "--net", "bash", script, str(manifest), sys.executable, *podman]
    environment = {**os.environ, "FETCH": FETCH}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == 'a: b # "on"', done.stdout
