"""The line of the Containerfile or EDF to change for each vulnerability."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from package_images import advisory, debian, metadata, mirror

from gipfel_extension.cli.main import gipfel
from gipfel_extension.gate.model import Vulnerability
from gipfel_extension.gate.scan.fixes import FixLines

_TEXT = """\
# RUN pip install requests==2.0
FROM debian:12
RUN apt-get update && apt-get install -y \\
    openssl=3.0.1 \\
    curl
RUN pip install 'Requests[socks]==2.4.1' jinja2
RUN pip install -r /src/requirements.txt
RUN <<EOF
npm install --global left-pad@1.0.0
EOF
"""


def vulnerability(package: str, fixed: str, ecosystem: str = "PyPI", version: str = "1") -> Vulnerability:
    return Vulnerability(
        id="A", severity="high", ecosystem=ecosystem, package=package, version=version, fixed=fixed
    )


def built(folder: Path, text: str = _TEXT) -> Path:
    """Return an image as `gipfel image build` leaves it, as far as fixes need it."""
    (folder / "Containerfile").write_text(text)
    (folder / "requirements.txt").write_text("numpy==1.0\nurllib3==1.0 \\\n    --hash=sha256:aa\n")
    outside = {"externalParameters": {"source": str(folder / "Containerfile")}}
    statement = {"predicate": {"buildDefinition": outside}}
    (folder / "my.sqsh.provenance.json").write_text(json.dumps(statement))
    (folder / "my.toml").write_text('# mine\nimage = "my.sqsh"\n')
    return folder / "my.sqsh"


@pytest.mark.parametrize(
    ("found", "line", "text"),
    [
        (vulnerability("requests", "2.31.0"), 6, "write `RUN pip install 'Requests[socks]==2.31.0' jinja2`"),
        (vulnerability("jinja2", "3.1"), 6, "write `RUN pip install 'Requests[socks]==2.4.1' jinja2==3.1`"),
        (vulnerability("openssl", "3.0.15-1", "Debian:12"), 4, "write `openssl=3.0.15-1 \\`"),
        (
            vulnerability("curl", "8.0", "Debian:12"),
            5,
            "build again with --no-cache: `curl` then installs curl 8.0 or newer",
        ),
        (
            vulnerability("zlib1g", "1.3", "Debian:12"),
            2,
            "add below it `RUN apt-get update && apt-get install -y --only-upgrade zlib1g`",
        ),
        (vulnerability("left-pad", "1.1.0", "npm"), 9, "write `npm install --global left-pad@1.1.0`"),
        (vulnerability("busybox", "1.37", "Alpine:v3.20"), 2, "add below it `RUN apk add --upgrade busybox`"),
        (vulnerability("bash", "5.2", "Rocky Linux:9"), 2, "add below it `RUN dnf upgrade -y bash`"),
        (vulnerability("example.org/x", "1.2", "Go"), 2, "use an image with example.org/x 1.2 or newer."),
    ],
)
def test_the_line_of_the_containerfile_is_named_with_its_safe_text(found, line, text, tmp_path):
    image = built(tmp_path)
    assert FixLines(image).fix(found) == f"{tmp_path}/Containerfile:{line}: {text}"


def test_a_requirements_file_of_the_context_is_named(tmp_path):
    fixes = FixLines(built(tmp_path))
    place = f"{tmp_path}/requirements.txt"
    assert fixes.fix(vulnerability("numpy", "1.22")) == f"{place}:1: write `numpy==1.22`"
    assert (
        fixes.fix(vulnerability("urllib3", "2.0.7")) == f"{place}:2: write `urllib3==2.0.7` with its hashes"
    )


def test_without_a_containerfile_the_line_of_the_edf_is_named(tmp_path):
    image = built(tmp_path)
    Path(f"{image}.provenance.json").unlink()
    fix = FixLines(image).fix(vulnerability("requests", "2.31.0"))
    assert fix.startswith(f'{tmp_path}/my.toml:2: image = "{tmp_path}/my-fixed.sqsh", built by')
    assert fix.endswith("`RUN python3 -m pip install requests==2.31.0`")
    assert FixLines(image, "/e.toml:7").fix(vulnerability("x", "2")).startswith("/e.toml:7: image = ")
    alone = FixLines(tmp_path / "other.sqsh").fix(vulnerability("x", "2"))
    assert alone == "Add to its Containerfile `RUN python3 -m pip install x==2`, which installs x 2 or newer."


@pytest.mark.parametrize(
    ("package", "fixed"), [("x", "1; curl https://a | sh"), ("$(id)", "1"), ("x`id`", "1"), ("x", "-1")]
)
def test_no_suggested_command_has_what_an_advisory_smuggles_in(package, fixed, tmp_path):
    fix = FixLines(built(tmp_path)).fix(vulnerability(package, fixed))
    assert "RUN" not in fix
    assert "or newer" in fix


def test_a_hostile_containerfile_does_not_hang_a_scan(tmp_path):
    for text in ("RUN " + "apt " * 30_000, "RUN apt\n" * 15_000, "RUN pip install " + "x==" * 40_000):
        fixes = FixLines(built(tmp_path, f"FROM a\n{text}"))
        for number in range(50):
            fix = fixes.fix(vulnerability(f"x{number}", "1", "Debian:12" if number % 2 else "PyPI"))
            assert fix.startswith(f"{tmp_path}/Containerfile:1: add below it")


def test_no_fixed_version_is_said(tmp_path):
    assert "No fixed version is known" in FixLines(built(tmp_path)).fix(vulnerability("x", ""))


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"predicate": 1}', b"\xff", b"[" * 9000, b'{"predicate": {}}']
)
def test_a_broken_provenance_names_no_containerfile(content, tmp_path):
    image = built(tmp_path)
    Path(f"{image}.provenance.json").write_bytes(content)
    assert FixLines(image).fix(vulnerability("x", "2")).startswith(f"{tmp_path}/my.toml:2: ")


def test_scan_and_check_show_the_line(tmp_path, monkeypatch):
    root = debian(tmp_path / "root")
    status = "Package: openssl\nStatus: install ok installed\nVersion: 1.0\nArchitecture: amd64\n\n"
    (root / "var/lib/dpkg/status").write_text(status)
    package = root / "usr/lib/python3/site-packages/x-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(metadata("x", "1"))
    osv = mirror(
        tmp_path / "osv",
        advisory("A", "PyPI", "x", {"introduced": "0"}, {"fixed": "2"}),
        advisory("B", "Debian:12", "openssl", {"introduced": "0"}, {"fixed": "2.0"}),
    )
    edf = tmp_path / "my.toml"
    edf.write_text(f'workdir = "/"\nimage = "{root}"\n')
    monkeypatch.setenv("GIPFEL_ADVISORIES", str(osv))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(gipfel, ["scan", str(root), "--json"], standalone_mode=False)
    fixes = {each["id"]: each["fix"] for each in json.loads(done.stdout)["vulnerabilities"]}
    assert "RUN python3 -m pip install x==2" in fixes["A"]
    assert "--only-upgrade openssl" in fixes["B"]
    done = CliRunner().invoke(gipfel, ["edf", "check", str(edf), "--here"], standalone_mode=False)
    assert done.stdout.count(f'{edf}:2: image = "') == 2
    done = CliRunner().invoke(gipfel, ["edf", "check", str(edf), "--here", "--json"], standalone_mode=False)
    security = json.loads(done.stdout)["security"]
    assert len(security["fixes"]) == len(security["worst"]) == 2
    assert all(each.startswith(f"{edf}:2: ") for each in security["fixes"])
