"""Packages in images, the order of versions, and advisories of an OSV mirror for them."""

import json
import random
import shutil
import sqlite3
import subprocess
from pathlib import Path

import model_zoo
import package_images as images
import pytest

from gipfel_extension.cli import main
from gipfel_extension.gate.advisories.mirror import Mirror
from gipfel_extension.gate.advisories.versions import compare
from gipfel_extension.gate.contents.entries import Unreadable
from gipfel_extension.gate.model import Package
from gipfel_extension.gate.packages.images import image_files
from gipfel_extension.gate.packages.inventory import Inventory
from gipfel_extension.gate.scan.targets import scan_targets

INTRODUCED = {"introduced": "0"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def drawn(alphabet: str, count: int) -> list[tuple[str, str]]:
    draw = random.Random(5)

    def text(length: int) -> str:
        return "".join(draw.choice(alphabet) for _ in range(draw.randrange(1, length)))

    firsts = ["1" + text(8) for _ in range(count)]
    return [(one, one[: draw.randrange(1, len(one) + 1)] + text(4)) for one in firsts]


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="needs dpkg")
def test_versions_of_debian_are_ordered_as_dpkg_does():
    compared = 0
    for one, other in drawn("01289.a~+z-", 120):
        words = ["dpkg", "--compare-versions", one, "lt", other]
        less = subprocess.run(words, capture_output=True, check=False)
        equal = subprocess.run([*words[:3], "eq", other], capture_output=True, check=False)
        if not less.stderr and not equal.stderr:
            compared += 1
            truth = -1 if less.returncode == 0 else 0 if equal.returncode == 0 else 1
            assert compare("Debian:12", one, other) == truth, (one, other)
    assert compared > 80


@pytest.mark.skipif(shutil.which("rpm") is None, reason="needs rpm")
def test_versions_of_rpm_are_ordered_as_rpm_does():
    pairs = drawn("01289.a~+z_^", 150)
    program = "".join(f'print(rpm.vercmp("{one}","{other}").." ")' for one, other in pairs)
    done = subprocess.run(
        ["rpm", "--eval", f"%{{lua:{program}}}"], capture_output=True, text=True, check=True
    )
    assert [compare("Rocky Linux:9", *pair) for pair in pairs] == [int(each) for each in done.stdout.split()]


@pytest.mark.parametrize(
    ("ecosystem", "ordered"),
    [
        # Vectors of rpm's tests/rpmvercmp.at, of apk-tools' test/version.data, of semver.org, and of PEP 440.
        ("Rocky Linux:9", "1.0~rc1 1.0~rc1^git1 1.0 1.0^ 1.0^20160101 1.0.1 2.0 2.0.1a 8 2:1"),
        ("Alpine:v3.99", "1.0_alpha 1.0_beta2 1.0_pre1 1.0_rc4 1.0 1.0_p1 1.0_p1-r1 1.0a 1.0.1 1.2 1.10"),
        ("npm", "1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.b 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0 1.10.0"),
        ("Go", "v0.0.0-20200101000000-abcdef v0.7.0 v1.2.3-pre v1.2.3 v1.20.1"),
        ("PyPI", "1.0.dev1 1.0a1 1.0rc1 1.0 1.0+local 1.0.post1 1.1 1!0.1"),
        ("Debian:12", "1.0~~ 1.0~~a 1.0~ 1.0 1.0-0 1.0a 1.0+b1 1:0.1"),
    ],
)  # fmt: skip
def test_published_orders(ecosystem, ordered):
    versions = ordered.split()
    if ecosystem.startswith("Alpine"):
        assert compare(ecosystem, "4.09", "4.8") == -1
    for place, one in enumerate(versions):
        for later, other in enumerate(versions):
            wanted = (place > later) - (place < later)
            if {one, other} != {"1.0", "1.0-0"} or not ecosystem.startswith("Debian"):
                assert compare(ecosystem, one, other) == wanted, (one, other)


@pytest.mark.parametrize(
    ("ecosystem", "version"),
    [("PyPI", "x"), ("npm", "latest"), ("Alpine:v3.99", "1.0_new"), ("Debian:12", "1 0"), ("Pub", "1")],
)
def test_a_version_that_cannot_be_compared_raises(ecosystem, version):
    with pytest.raises(ValueError, match=r"\S"):
        compare(ecosystem, version, "1.0")


def rows(packages) -> set[tuple[str, str, str]]:
    return {(each.ecosystem, each.name, each.version) for each in packages}


DEBIAN = {
    ("Debian:12", "libssl3", "3.0.9-1+b2"),
    ("Debian:12", "python3-urllib3", "1.26.12-1"),
    ("PyPI", "urllib3", "1.26.12"),
    ("PyPI", "Jinja2", "2.4.1"),
    ("", "zlib", "1.2.13"),
    ("npm", "lodash", "4.17.20"),
    ("npm", "@a/b", "1.0.0"),
    ("Go", "stdlib", "1.20.1"),
    ("Go", "golang.org/x/net", "v0.7.0"),
    ("Go", "example.com/new", "v1.2.3"),
}


def test_the_packages_of_a_directory(tmp_path):
    inventory = Inventory(images.debian(tmp_path))
    assert rows(inventory.packages) == DEBIAN
    assert inventory.not_judged == []
    owners = {each.name: each.owner for each in inventory.packages}
    assert (owners["urllib3"], owners["Jinja2"]) == ("python3-urllib3", "")
    (ssl,) = [each for each in inventory.packages if each.name == "libssl3"]
    assert (ssl.advisory_name, ssl.advisory_version) == ("openssl", "3.0.9-1")


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")
def test_the_packages_of_a_squashfs_image(tmp_path, capsys):
    image = tmp_path / "image.sqsh"
    root = images.debian(tmp_path / "root")
    subprocess.run(["mksquashfs", str(root), str(image), "-quiet", "-no-progress"], check=True)
    assert rows(Inventory(image).packages) == DEBIAN
    broken = tmp_path / "broken.sqsh"
    broken.write_bytes(image.read_bytes()[:-4096])
    assert main(["scan", str(broken)]) == 2
    broken.write_bytes(image.read_bytes()[:200])
    capsys.readouterr()
    assert main(["scan", str(broken)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gipfel: could not be judged: {broken} can't be read: ")


def test_the_layers_of_an_oci_archive(tmp_path):
    base = "usr/lib/python3/site-packages/"
    first = {
        "./etc/os-release": b"ID=debian\nVERSION_ID=12\n",
        base + "a-1.dist-info/METADATA": images.metadata("a", "1").encode(),
        base + "b-1.dist-info/METADATA": images.metadata("b", "1").encode(),
        "opt/x/c-1.dist-info/METADATA": images.metadata("c", "1").encode(),
    }
    second = {
        base + ".wh.a-1.dist-info": b"",
        base + "b-1.dist-info/METADATA": images.metadata("b", "2").encode(),
        "opt/.wh..wh..opq": b"",
    }
    archive = images.oci_archive(tmp_path / "image.tar", [first, second])
    assert rows(Inventory(archive).packages) == {("PyPI", "b", "2")}


def test_apk_and_rpm(tmp_path):
    alpine = Inventory(images.alpine(tmp_path / "alpine"))
    found = {
        ("Alpine:v3.99", "musl", "1.2.4-r1"),
        ("Alpine:v3.99", "py3-idna", "3.4-r4"),
        ("PyPI", "idna", "3.4"),
    }
    assert rows(alpine.packages) == found
    assert [each.owner for each in alpine.packages if each.name == "idna"] == ["py3-idna"]
    rocky = Inventory(images.rocky(tmp_path / "rocky"))
    openssl, bash = ("Rocky Linux:9", "openssl", "1:3.0.1-47.el9"), ("Rocky Linux:9", "bash", "5.1.8-6.el9")
    assert rows(rocky.packages) == {openssl, bash}


_SPEC = """\
Name: hello
Epoch: 1
Version: 1.2~rc1
Release: 3.el9
Summary: A package of the tests
License: MIT
BuildArch: noarch
%description
It has a Python package.
%install
mkdir -p %{buildroot}/usr/lib/python3/site-packages/idna-3.4.dist-info
touch %{buildroot}/usr/lib/python3/site-packages/idna-3.4.dist-info/METADATA
%files
/usr/lib/python3/site-packages/idna-3.4.dist-info
"""


@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="needs rpmbuild of Debian's package rpm")
def test_a_database_that_rpm_has_written(tmp_path):
    spec, root = tmp_path / "hello.spec", tmp_path / "root"
    spec.write_text(_SPEC)
    places = ["--define", f"_topdir {tmp_path}/top", "--define", "_db_backend sqlite"]
    places += ["--dbpath", str(root / "var/lib/rpm")]
    (root / "var/lib/rpm").mkdir(parents=True)
    subprocess.run(["rpmbuild", "-bb", "--quiet", *places, spec], check=True, capture_output=True)
    (package,) = (tmp_path / "top/RPMS").rglob("*.rpm")
    subprocess.run(["rpm", *places, "-i", "--justdb", "--nodeps", package], check=True, capture_output=True)
    metadata = "usr/lib/python3/site-packages/idna-3.4.dist-info/METADATA"
    images.put(
        root, {"etc/os-release": 'ID="rocky"\nVERSION_ID="9.2"\n', metadata: images.metadata("idna", "3.4")}
    )
    found = Inventory(root)
    hello = ("Rocky Linux:9", "hello", "1:1.2~rc1-3.el9")
    assert (rows(found.packages), found.not_judged) == ({hello, ("PyPI", "idna", "3.4")}, [])
    assert {each.name: each.owner for each in found.packages} == {"hello": "", "idna": "hello"}


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + bytes(100), b"\xff" * 5000])
def test_a_broken_database_is_not_judged(content, tmp_path):
    images.put(tmp_path, {"var/lib/rpm/rpmdb.sqlite": content, "var/lib/rpm/Packages.db": b"x"})
    inventory = Inventory(tmp_path)
    assert (inventory.packages, len(inventory.not_judged)) == ((), 2)


def test_a_hostile_view_in_place_of_the_table_is_refused(tmp_path):
    path = tmp_path / "var/lib/rpm/rpmdb.sqlite"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as database:
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT x AS blob FROM c"
        database.execute(f"CREATE VIEW Packages AS {endless}")
    assert "no table" in Inventory(tmp_path).not_judged[0]


def test_links_of_an_image_do_not_lead_out_of_it(tmp_path):
    images.put(tmp_path / "outside", {"status": "Package: x\nVersion: 1\n"})
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/os-release").symlink_to(tmp_path / "outside/status")
    with image_files(tmp_path / "root") as files:
        assert files == {}
    # Without the database of packages nothing could be called clean.
    (tmp_path / "root/var/lib/dpkg").mkdir(parents=True)
    for target in (tmp_path / "outside/status", "status"):
        link = tmp_path / "root/var/lib/dpkg/status"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert scan_targets([tmp_path / "root"], advisories=None, max_age_s=1.0).exit_status("high") == 2
        with pytest.raises(Unreadable, match="status is not a file"), image_files(tmp_path / "root"):
            pass


_INSTALLED = "Package: openssl\nStatus: install ok installed\n"


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("var/lib/dpkg/status", "", "lists no packages"),
        ("var/lib/dpkg/status", f"{_INSTALLED}\n", "1 of its entries have no name or no single version"),
        ("var/lib/dpkg/status", f"{_INSTALLED}Version: 9\nVersion: 1\n\n", "no single version"),
        ("var/lib/dpkg/status", f"{_INSTALLED}garbage\nVersion: 1\n\n", "no single version"),
        ("var/lib/dpkg/status", f"{_INSTALLED}Version: 1\n\nPackage: zlib\nVersion: 1", "is cut off"),
        ("var/lib/dpkg/status", f"{_INSTALLED}Version: 1\n".encode("utf-16"), "no name"),
        ("lib/apk/db/installed", "P:openssl\nV:", "no single version"),
        ("lib/apk/db/installed", "\0" * 4096, "no name"),
    ],
)
def test_a_database_that_hides_packages_is_not_judged(path, content, words, tmp_path):
    images.put(tmp_path, {"etc/os-release": "ID=debian\nVERSION_ID=12\n", path: content})
    (line,) = Inventory(tmp_path).not_judged
    assert words in line


def test_a_release_that_the_mirror_does_not_know_is_not_judged(tmp_path):
    images.mirror(tmp_path, images.advisory("A", "Debian:12", "openssl", {"introduced": "0"}, {"fixed": "2"}))
    assert ids(tmp_path, package("Debian:12", "bash", "1")) == ([], [])
    found, lines = ids(tmp_path, package("Debian:99", "bash", "1"))
    assert (found, lines) == ([], ["The mirror has no advisories for Debian:99. Update it."])


def ids(mirror_dir: Path, *packages: Package) -> tuple[list[str], list[str]]:
    mirror = Mirror(mirror_dir)
    return [each.id for each in mirror.vulnerabilities(packages)], mirror.not_judged


def package(ecosystem: str, name: str, version: str, **further) -> Package:
    return Package(ecosystem=ecosystem, name=name, version=version, path="p", **further)


def test_ranges_and_versions(tmp_path):
    record = images.advisory
    images.mirror(
        tmp_path,
        record("FIXED", "PyPI", "jinja2", INTRODUCED, {"fixed": "2.4"}),
        record("OPEN", "PyPI", "Jinja2", INTRODUCED),
        record(
            "TWICE", "PyPI", "jinja2", INTRODUCED, {"fixed": "1"}, {"introduced": "2.4"}, {"fixed": "2.5"}
        ),
        record("LAST", "PyPI", "jinja2", INTRODUCED, {"last_affected": "2.4.1"}),
        record("BEFORE", "PyPI", "jinja2", {"introduced": "2.5"}),
        record("GONE", "PyPI", "jinja2", INTRODUCED, withdrawn="2024-01-01T00:00:00Z"),
        record("OTHER", "PyPI", "jinja3", INTRODUCED),
    )
    found, not_judged = ids(tmp_path, package("PyPI", "Jinja2", "2.4.1"))
    assert (found, not_judged) == (["OPEN", "TWICE", "LAST"], [])
    (twice,) = [
        each
        for each in Mirror(tmp_path).vulnerabilities([package("PyPI", "jinja2", "2.4.1")])
        if each.id == "TWICE"
    ]
    assert (twice.fixed, twice.severity) == ("2.5", "high")


def test_a_patch_of_the_distribution_counts(tmp_path):
    images.mirror(
        tmp_path,
        images.advisory("DSA-1", "Debian:12", "openssl", INTRODUCED, {"fixed": "3.0.9-1"}),
        images.advisory("DSA-2", "Debian:12", "openssl", INTRODUCED, {"fixed": "3.0.11-1~deb12u2"}),
        images.advisory("DSA-11", "Debian:11", "openssl", INTRODUCED),
        images.advisory("GHSA-1", "PyPI", "urllib3", INTRODUCED),
    )
    ssl = package("Debian:12", "libssl3", "3.0.9-1+b2", source="openssl", source_version="3.0.9-1")
    owned = package("PyPI", "urllib3", "1.26.12", owner="python3-urllib3")
    assert ids(tmp_path, ssl, owned) == (["DSA-2"], [])


def test_severities(tmp_path):
    vector = [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"}]
    low = [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:L/AC:H/PR:H/UI:R/S:U/C:L/I:N/A:N"}]
    images.mirror(
        tmp_path,
        images.advisory("A", "npm", "x", INTRODUCED, severity=vector),
        images.advisory("B", "npm", "x", INTRODUCED, severity=low),
        images.advisory("C", "npm", "x", INTRODUCED, database_specific={"severity": "MODERATE"}),
    )
    found = Mirror(tmp_path).vulnerabilities([package("npm", "x", "1.0.0")])
    assert {each.id: each.severity for each in found} == {"A": "critical", "B": "low", "C": "medium"}


def test_what_cannot_be_judged_is_said(tmp_path):
    images.mirror(tmp_path, images.advisory("A", "PyPI", "x", INTRODUCED, {"fixed": "2"}))
    found, lines = ids(tmp_path, package("PyPI", "x", "not-a-version"), package("npm", "y", "1.0.0"))
    assert (found, len(lines)) == ([], 2)
    old = images.advisory("B", "PyPI", "x", INTRODUCED, modified="2020-01-01T00:00:00Z")
    mirror = Mirror(images.mirror(tmp_path, old))
    mirror.vulnerabilities([package("PyPI", "x", "1")])
    assert "days old" in mirror.age_s(mirror.newest_s)[1][0]
    half = tmp_path / "PyPI/all.zip"
    half.write_bytes(half.read_bytes()[:-30])
    assert "can't be read" in ids(tmp_path, package("PyPI", "x", "1"))[1][0]


def scanned(capsys, *words: str) -> tuple[int, dict]:
    status = main(["scan", *words, "--json"])
    written = capsys.readouterr().out
    return status, json.loads(written)


def test_the_document_and_the_exit_status(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GIPFEL_ADVISORIES", raising=False)
    model = tmp_path / "model.pkl"
    model.write_bytes(model_zoo.SYSTEM)
    status, document = scanned(capsys, str(model))
    assert status == 1
    assert set(document) >= {"items", "packages", "vulnerabilities", "advisories_age_s"}
    (item,) = document["items"]
    assert (item["verdict"], set(item)) == ("malicious", {"path", "verdict", "findings"})
    assert set(item["findings"][0]) == {"rule", "severity", "message", "fix"}
    model.write_bytes(model_zoo.BENIGN["values.pkl"][0])
    assert scanned(capsys, str(model))[0] == 0
    model.write_bytes(b"\x80\x04broken")
    assert scanned(capsys, str(model))[0] == 2
    assert main(["scan", str(tmp_path / "missing")]) == 2


def test_packages_are_never_clean_without_advisories(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GIPFEL_ADVISORIES", raising=False)
    root = images.alpine(tmp_path / "root")
    assert scanned(capsys, str(root))[0] == 2
    assert scanned(capsys, str(root), "--advisories", str(tmp_path / "none"))[0] == 2
    osv = images.mirror(
        tmp_path / "osv", images.advisory("A", "Alpine:v3.99", "musl", INTRODUCED, {"fixed": "1.2.3-r0"})
    )
    status, document = scanned(capsys, str(root), "--advisories", str(osv))
    assert (status, document["vulnerabilities"]) == (0, [])
    assert 0 <= document["advisories_age_s"] < 600
    images.mirror(osv, images.advisory("A", "Alpine:v3.99", "musl", INTRODUCED, {"fixed": "1.2.4-r2"}))
    status, document = scanned(capsys, str(root), "--advisories", str(osv))
    assert (status, document["vulnerabilities"][0]["fixed"]) == (1, "1.2.4-r2")
    assert main(["scan", str(root), "--advisories", str(osv), "--fail-on", "critical"]) == 0


def test_advisories_that_name_commits_only_are_counted_as_not_judged(tmp_path):
    record = images.advisory("GIT-1", "PyPI", "x")
    record["affected"][0]["ranges"] = [{"type": "GIT", "repo": "r", "events": [{"introduced": "0"}]}]
    known = images.advisory("GIT-2", "PyPI", "x")
    known["affected"][0].update(record["affected"][0], versions=["2.0"])
    images.mirror(tmp_path, record, {**record, "id": "GIT-3"}, known)
    found, (line,) = ids(tmp_path, package("PyPI", "x", "1.0"))
    assert (found, line[:2], line.endswith(" x.")) == ([], "2 ", True)
    assert ids(tmp_path, package("PyPI", "x", "2.0"))[0] == ["GIT-2"]
