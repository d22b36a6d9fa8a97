"""Images that a plain user builds on the nodes of a real Slurm, from a tar file and without a registry."""

import hashlib
import importlib.util
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from engine_containers import Containers
from image_builds import MARKS, STATUS, Gipfel
from images import SUITE, Images
from package_images import index_repository, write_oci_image, write_repository
from unix_users import UnixUser

from gipfel_cluster.engines.protocol import Mount
from gipfel_cluster.environment import parse_environment

pytestmark = MARKS

#: Seconds in which a small Debian is installed, on a busy machine.
_DEBIAN_S = 300


@pytest.fixture(scope="module")
def built(gipfel: Gipfel, home: Path) -> Path:
    """An image that is built in a job on one node."""
    argv = ("image", "build", "context", "-o", "first.sqsh", "--build-arg", "COLOUR=sky", "--json")
    done = gipfel(*argv, node="node01")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["image"] == str(home / "first.sqsh")
    assert document["packages"] == 1
    assert document["signature"], document["note"]
    return home / "first.sqsh"


def test_two_nodes_build_the_same_bytes(gipfel: Gipfel, built: Path, home: Path) -> None:
    argv = ("image", "build", "context", "-o", "second.sqsh", "--build-arg", "COLOUR=sky", "--no-cache")
    done = gipfel(*argv, node="node02")
    assert done.returncode == 0, done.stderr
    assert (home / "second.sqsh").read_bytes() == built.read_bytes()
    same = gipfel("image", "diff", "first.sqsh", "second.sqsh")
    assert (same.returncode, same.stdout) == (0, "0 packages differ\n")


def test_a_job_of_its_own_builds_the_same_bytes(gipfel: Gipfel, built: Path, home: Path) -> None:
    words = ("image", "build", "context", "-o", "job.sqsh", "--build-arg", "COLOUR=sky")
    done = gipfel(*words, "--time", "10:00", "--memory", "500M", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["image"] == str(home / "job.sqsh")
    assert (home / "job.sqsh").read_bytes() == built.read_bytes()
    listed = json.loads(gipfel("ps", "--all", "--kind", "build", "--json").stdout)[-1]
    assert (listed["state"], listed["job_id"] != "", len(listed["nodes"])) == ("completed", True, 1)
    assert "Packing the image" in gipfel("logs", f"build:{listed['id']}").stdout
    refused = gipfel("image", "build", "context", "-o", "x.sqsh", "--partition", "absent")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1), refused.stderr


def test_a_second_build_runs_no_step_again(gipfel: Gipfel, home: Path, engine_user: UnixUser) -> None:
    text = "FROM scratch\nADD base.tar /\nRUN cat /proc/sys/kernel/random/uuid > /drawn\nRUN touch /{}\n"
    drawn = []
    for number, name in enumerate(("same", "same", "other")):
        engine_user.write("context/Drawn", text.format(name))
        done = gipfel("image", "build", "context/Drawn", "-o", f"drawn-{number}.sqsh", "--no-sign")
        assert done.returncode == 0, done.stderr
        drawn.append(_content(home / f"drawn-{number}.sqsh", "drawn"))
    # The steps before the one that changed are those of the first build, too.
    assert len(drawn[0]) == len("00000000-0000-0000-0000-000000000000\n")
    assert drawn[0] == drawn[1] == drawn[2]
    assert (home / "drawn-0.sqsh").read_bytes() == (home / "drawn-1.sqsh").read_bytes()
    done = gipfel("image", "build", "context/Drawn", "-o", "drawn-3.sqsh", "--no-sign", "--no-cache")
    assert done.returncode == 0, done.stderr
    assert _content(home / "drawn-3.sqsh", "drawn") != drawn[0]


def _content(image: Path, name: str) -> bytes:
    command = ["unsquashfs", "-cat", image, name]
    return subprocess.run(command, check=True, capture_output=True).stdout


def test_an_oci_archive_and_an_image_are_bases(
    gipfel: Gipfel, built: Path, home: Path, engine_user: UnixUser
) -> None:
    archive = home / "archive.tar"
    with tarfile.open(home / "context/base.tar") as base:
        files = {each.name: file.read() for each in base if each.isreg() and (file := base.extractfile(each))}
    status = STATUS.replace("tiny", "from-oci").encode()
    layer = {name.removeprefix("./"): content for name, content in files.items()} | {
        "var/lib/dpkg/status": status
    }
    write_oci_image(archive, layer)
    engine_user.own(archive)
    engine_user.write("context/Based", "FROM base\nCOPY note /note\n")
    engine_user.write("context/note", "mine\n")
    for base, package in ((archive, "from-oci"), (built, "tiny")):
        words = ("image", "build", "context/Based", "-o", "based.sqsh", "--base", str(base), "--replace")
        done = gipfel(*words, "--no-sign")
        assert done.returncode == 0, done.stderr
        assert _content(home / "based.sqsh", "note") == b"mine\n"
        bill = json.loads((home / "based.sqsh.cdx.json").read_text())
        assert {each["name"] for each in bill["components"]} - {"debian"} == {package}
        record = json.loads((home / "based.sqsh.provenance.json").read_text())
        taken = record["predicate"]["buildDefinition"]["resolvedDependencies"]
        hashed = hashlib.sha256(base.read_bytes()).hexdigest()
        assert {"name": str(base), "digest": {"sha256": hashed}} in taken


@pytest.fixture
def debian_packages(engine_place: Path, images: Images) -> Path:
    """A directory with the packages of a small Debian, and the lists by which apt finds them."""
    folder = engine_place / "debian"
    shutil.copytree(images.packages, folder, ignore=shutil.ignore_patterns("lock", "partial"))
    folder.chmod(0o755)
    index_repository(folder, SUITE)
    return folder


def test_packages_of_debian_are_a_base(
    gipfel: Gipfel, home: Path, engine_user: UnixUser, debian_packages: Path
) -> None:
    engine_user.write("context/Packaged", "FROM base\nRUN dpkg --audit && touch /made\n")
    line = f"deb [trusted=yes] file:{debian_packages} ./"
    words = ("image", "build", "context/Packaged", "-o", "packaged.sqsh", "--no-sign", "--no-network")
    words = (*words, "--base", "debian:bookworm", "--json")
    done = gipfel(*words, limit_s=2 * _DEBIAN_S, GIPFEL_DEBIAN_MIRROR=line)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packages"] > 50
    bill = json.loads((home / "packaged.sqsh.cdx.json").read_text())
    assert {"dpkg", "apt", "bash"} <= {each["name"] for each in bill["components"]}
    record = json.loads((home / "packaged.sqsh.provenance.json").read_text())
    (taken,) = record["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert taken["name"] == f"debian:bookworm from deb [trusted=yes] copy:{debian_packages} ./"
    refused = gipfel(*words, "--replace", GIPFEL_DEBIAN_MIRROR="ftp://a")
    assert (refused.returncode, "is not a repository: ftp://a" in refused.stderr) == (1, True)


def test_the_image_holds_what_an_engine_needs(gipfel: Gipfel, built: Path, home: Path) -> None:
    listing = subprocess.run(["unsquashfs", "-l", built], capture_output=True, text=True, check=True).stdout
    assert "opt/made" in listing
    # What records how a build went is different each time.
    assert not [name for name in ("dpkg.log", "opt/when", "run/x") if name in listing]
    text = subprocess.run(["unsquashfs", "-cat", built, "etc/environment"], capture_output=True, text=True)
    variables = parse_environment(text.stdout)
    assert variables["COLOUR"] == "sky blue"
    assert variables["SPACED"] == " a "
    assert "SOURCE_DATE_EPOCH" not in variables
    edf = (home / "first.toml").read_text()
    assert edf == f'image = "{built}"\nworkdir = "/opt"\nentrypoint = true\n'
    checked = gipfel("edf", "check", "./first.toml", "--here", "--json")
    assert json.loads(checked.stdout)["valid"], checked.stdout
    argv = gipfel("edf", "render", "./first.toml", "--engine", "bubblewrap", "--", "env")
    assert argv.returncode == 0, argv.stderr
    shown = gipfel("image", "show", "first.sqsh", "--json")
    document = json.loads(shown.stdout)
    assert [each["name"] for each in document["inputs"]] == ["base.tar"]
    assert document["verification"]["verdict"] == "verified"
    assert document["arguments"] == {"COLOUR": "sky"}


def test_another_key_and_a_changed_image_are_refused(
    gipfel: Gipfel, built: Path, home: Path, engine_user: UnixUser
) -> None:
    keys = {name: (home / ".ssh" / f"{name}.pub").read_text() for name in ("id_ed25519", "other")}
    engine_user.write("signers", f"site {keys['id_ed25519']}", 0o644)
    engine_user.write("others", f"other {keys['other']}", 0o644)
    good = gipfel("image", "verify", "first.sqsh", "--signers", "signers", "--json")
    assert (good.returncode, json.loads(good.stdout)["signer"]) == (0, "site")
    refused = gipfel("image", "verify", "first.sqsh", "--signers", "others")
    assert refused.returncode == 1
    assert "refused" in refused.stdout
    statement = built.with_name("first.sqsh.provenance.json")
    before = statement.read_text()
    try:
        statement.write_text(before.replace("base.tar", "safe.tar"))
        assert gipfel("image", "verify", "first.sqsh").returncode == 1
    finally:
        statement.write_text(before)
    with built.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))
    changed = gipfel("image", "verify", "first.sqsh")
    with built.open("r+b") as file:
        file.seek(5000)
        file.write(byte)
    assert (changed.returncode, "not the file that was built" in changed.stdout) == (1, True)
    signature = built.with_name("first.sqsh.provenance.json.sig")
    signature.rename(home / "kept.sig")
    assert gipfel("image", "verify", "first.sqsh").returncode == 2
    (home / "kept.sig").rename(signature)


def test_an_engine_runs_the_image(built: Path, engine_place: Path, engine_user: UnixUser) -> None:
    containers = Containers(engine_place, engine_user, "bubblewrap", str(built))
    try:
        status, out, err = containers.run("env", entrypoint=True)
    finally:
        containers.end()
    assert status == 0, err
    assert {"COLOUR=sky blue", "SPACED= a ", "ENTERED=yes", "PWD=/opt"} <= set(out.splitlines())


#: Typed by the user in a container of the image, whose account apt takes for root's.
_INSTALL = """\
set -e
echo "deb [trusted=yes] file:{folder} ./" > /etc/apt/sources.list.d/own.list
apt="unshare --map-root-user apt-get -qq -o APT::Sandbox::User=root"
$apt update -o Dir::Etc::sourcelist=/dev/null
$apt install -y gipfel-hello > /dev/null
/usr/bin/python3 -m pip -q install --break-system-packages --no-index --find-links {folder} tiny
{gipfel} image save-environment {home}/saved --image {image} --python /usr/bin/python3 --wheels {folder}
"""


@pytest.fixture
def sources(engine_place: Path) -> Path:
    """A directory with a wheel, and with a package that apt finds in it."""
    folder = engine_place / "sources"
    folder.mkdir()
    write_repository(folder)
    with zipfile.ZipFile(folder / "tiny-2.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "VERSION = 2.5\n")
        wheel.writestr("tiny-2.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 2.5\n")
        wheel.writestr(
            "tiny-2.5.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny-2.5.dist-info/RECORD", "tiny.py,,\n")
    return folder


def test_an_environment_that_is_saved_in_a_container_builds_the_same_packages(
    gipfel: Gipfel,
    home: Path,
    engine_place: Path,
    engine_user: UnixUser,
    images: Images,
    runtime: Path,
    sources: Path,
) -> None:
    image, root = engine_place / "apt.sqsh", engine_place / "apt"
    found = importlib.util.find_spec("pip")
    assert found is not None
    assert found.origin
    # Debian with apt, and Python of another image: no package has to be fetched.
    commands = (
        ["cp", "-a", images.unpacked, root],
        ["unsquashfs", "-quiet", "-no-progress", "-f", "-d", root, images.python, "usr/lib", "usr/bin"],
        ["mkdir", "-p", root / "usr/local/lib/python3.11/dist-packages"],
        ["cp", "-r", Path(found.origin).parent, root / "usr/local/lib/python3.11/dist-packages/pip"],
        ["mksquashfs", root, image, "-quiet", "-no-progress", "-comp", "lz4"],
    )
    for each in commands:
        subprocess.run(each, check=True, stdout=subprocess.DEVNULL)
    containers = Containers(engine_place, engine_user, "bubblewrap", str(image))
    names = {"folder": sources, "home": home, "image": image, "gipfel": f"{runtime}/bin/gipfel"}
    mounts = [Mount(source=str(each), destination=str(each)) for each in (sources, home, runtime)]
    try:
        status, out, err = containers.shell(_INSTALL.format(**names), mounts=mounts)
    finally:
        containers.end()
    assert status == 0, err + out
    assert out.splitlines()[:2] == ["gipfel-hello=1.2-3", "tiny==2.5"], out
    refused = gipfel("image", "build", "saved", "-o", "saved.sqsh", "--no-network")
    assert refused.returncode == 1
    assert f"If that is right: --mount {sources}" in refused.stderr
    words = ("image", "build", "saved", "-o", "saved.sqsh", "--mount", str(sources), "--no-network", "--json")
    built = gipfel(*words)
    assert built.returncode == 0, built.stderr
    bill = json.loads((home / "saved.sqsh.cdx.json").read_text())
    packages = {(each["name"], each["version"]) for each in bill["components"]}
    assert {("gipfel-hello", "1.2-3"), ("tiny", "2.5")} <= packages
    assert (home / "saved.toml").is_file()
    # Against the image in which they were installed: these packages were added, and nothing else changed.
    changed = gipfel("image", "diff", str(image), "saved.sqsh", "--json")
    assert changed.returncode == 1, changed.stderr
    found = {each["name"]: (each["before"], each["after"]) for each in json.loads(changed.stdout)["packages"]}
    assert found == {"pkg:deb/debian/gipfel-hello": ([], ["1.2-3"]), "pkg:pypi/tiny": ([], ["2.5"])}
