"""Updating a mirror of OSV: whole archives or none, and never from a partially written one."""

import http.server
import json
import os
import threading
import zipfile
from functools import partial
from pathlib import Path

import package_images as images
import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli import main
from gipfel_extension.gate.advisories.update import update_mirror
from gipfel_extension.gate.model import Package
from gipfel_extension.images.sbom import bill_of_materials

RECORD = images.advisory("A", "PyPI", "x", {"introduced": "0"}, {"fixed": "2"})


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def source(tmp_path) -> Path:
    return images.mirror(tmp_path / "source", RECORD, {**RECORD, "id": "B"})


def archive_of(root: Path) -> Path:
    return root / "PyPI/all.zip"


def leftovers(root: Path) -> list[str]:
    return sorted(each.name for each in (root / "PyPI").iterdir())


def test_a_mirror_is_updated_from_a_directory(tmp_path, source, capsys):
    images.mirror(source, images.advisory("C", "npm", "y", {"introduced": "0"}))
    words = ["scan", "--advisories", str(tmp_path / "osv"), "--update-advisories", str(source)]
    assert main(words) == 0
    assert "PyPI: 2 records, the newest 0.0 days old." in capsys.readouterr().err
    assert archive_of(tmp_path / "osv").read_bytes() == archive_of(source).read_bytes()
    assert leftovers(tmp_path / "osv") == ["all.zip"]
    assert (tmp_path / "osv/npm/all.zip").is_file()


@pytest.fixture
def server(source):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *given):
            """Print nothing."""

        def copyfile(self, content, output):
            read = content.read()
            output.write(read[: -cut.get("bytes", 0) or None])

    cut: dict[str, int] = {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=source)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", cut
        server.shutdown()
        thread.join()


def test_a_mirror_is_updated_from_a_server(tmp_path, source, server):
    address, cut = server
    updated, problems = update_mirror(tmp_path / "osv", address)
    assert [(each.ecosystem, each.records) for each in updated] == [("PyPI", 2)]
    assert all("404" in line for line in problems)
    before = archive_of(tmp_path / "osv").read_bytes()
    cut["bytes"] = 40
    with pytest.raises(GipfelError, match="bytes arrived"):
        update_mirror(tmp_path / "osv", address, ["PyPI"])
    assert archive_of(tmp_path / "osv").read_bytes() == before
    assert leftovers(tmp_path / "osv") == ["all.zip"]


def test_an_address_that_does_not_answer_is_one_line(tmp_path, capsys):
    words = ["scan", "--advisories", str(tmp_path), "--update-advisories", "http://127.0.0.1:9"]
    assert main([*words, "--ecosystem", "PyPI"]) == 2
    assert "can't be reached" in capsys.readouterr().err


def damaged(how: str, path: Path) -> None:
    content = path.read_bytes()
    if how == "cut off":
        path.write_bytes(content[:-30])
    elif how == "changed":
        path.write_bytes(content.replace(b"introduced", b"introdUced"))
    elif how == "empty":
        zipfile.ZipFile(path, "w").close()
    elif how == "not a zip file":
        path.write_bytes(b"x" * 1000)
    else:
        records = {
            "records cut off": [json.dumps(RECORD)[:-20]],
            "without dates": ['{"id": "A"}'] * 3,
            "fewer": [json.dumps(RECORD)],
            "older": [json.dumps({**RECORD, "modified": "2020-01-01T00:00:00Z"})] * 6,
        }[how]
        with zipfile.ZipFile(path, "w") as archive:
            for number, text in enumerate(records):
                archive.writestr(f"{number}.json", text)


@pytest.mark.parametrize(
    "how",
    ["cut off", "changed", "empty", "not a zip file", "records cut off", "without dates", "fewer", "older"],
)
def test_what_is_half_written_never_replaces_a_mirror(how, tmp_path, source):
    osv = images.mirror(tmp_path / "osv", *({**RECORD, "id": str(number)} for number in range(5)))
    before = archive_of(osv).read_bytes()
    damaged(how, archive_of(source))
    with pytest.raises(GipfelError, match="was not updated"):
        update_mirror(osv, str(source))
    assert archive_of(osv).read_bytes() == before
    assert leftovers(osv) == ["all.zip"]


def test_a_damaged_mirror_is_replaced_and_never_clean(tmp_path, source, capsys):
    osv = images.mirror(tmp_path / "osv", RECORD)
    root = images.put(
        tmp_path / "root", {"usr/lib/python3/x-1.dist-info/METADATA": images.metadata("x", "1")}
    )
    damaged("cut off", archive_of(osv))
    assert main(["scan", str(root), "--advisories", str(osv)]) == 2
    words = ["scan", str(root), "--advisories", str(osv), "--update-advisories", str(source)]
    assert main(words) == 1
    assert "advisories 0.0 days old" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../PyPI", ".", "", "a\nb"])
def test_a_name_that_leads_elsewhere_is_refused(name, tmp_path, source):
    with pytest.raises(GipfelError, match="not an ecosystem"):
        update_mirror(tmp_path / "osv", str(source), [name])


def test_a_mirror_must_be_named(source, capsys, monkeypatch):
    monkeypatch.delenv("GIPFEL_ADVISORIES", raising=False)
    assert main(["scan", "--update-advisories", str(source)]) == 2
    assert "--advisories DIR" in capsys.readouterr().err


PURL = "pkg:pypi/X@1.0"


def scan_bill(root: Path, name: str, content: bytes, capsys) -> tuple[int, dict]:
    images.mirror(root / "osv", RECORD)
    debian = images.advisory("D", "Debian:12", "openssl", {"introduced": "0"}, {"fixed": "3.0.9-2"})
    images.mirror(root / "osv", debian)
    (root / name).write_bytes(content)
    status = main(["scan", str(root / name), "--advisories", str(root / "osv"), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_packages_of_a_bill_of_another_tool_are_compared(tmp_path, capsys):
    libssl = "pkg:deb/debian/libssl3@3.0.9-1?arch=amd64&distro=debian-12&upstream=openssl"
    inner = {"type": "library", "name": "x", "purl": PURL}
    outer = {"type": "application", "name": "app", "purl": "pkg:npm/%40a/b@1", "components": [inner]}
    document = {"bomFormat": "CycloneDX", "components": [outer, {"type": "file"}, {"purl": libssl}]}
    images.mirror(tmp_path / "osv", images.advisory("N", "npm", "@a/b", {"introduced": "2"}))
    status, found = scan_bill(tmp_path, "their.cdx.json", json.dumps(document).encode(), capsys)
    assert {each["id"] for each in found["vulnerabilities"]} == {"A", "D"}
    assert (status, found["not_judged"]) == (1, [])
    spdx = {
        "spdxVersion": "SPDX-2.3",
        "documentDescribes": ["i"],
        "packages": [
            {"SPDXID": "i", "name": "image"},
            {"externalRefs": [{"referenceType": "purl", "referenceLocator": PURL}]},
        ],
    }
    status, found = scan_bill(tmp_path, "sbom.json", json.dumps(spdx).encode(), capsys)
    assert (found["vulnerabilities"][0]["id"], found["not_judged"]) == ("A", [])


def test_our_own_bill_names_the_source_packages(tmp_path, capsys):
    libssl = Package(
        ecosystem="Debian:12", name="libssl3", version="3.0.9-1", path="var/lib/dpkg/status", source="openssl"
    )
    document = bill_of_materials([libssl], name="x.sqsh", os_release={"ID": "debian", "VERSION_ID": "12"})
    _, found = scan_bill(tmp_path, "x.sqsh.cdx.json", json.dumps(document).encode(), capsys)
    assert ([each["id"] for each in found["vulnerabilities"]], found["not_judged"]) == (["D"], [])


def test_only_a_listed_package_of_a_distribution_owns_another(tmp_path, capsys):
    claim = {"purl": PURL, "properties": [{"name": "gipfel:owner", "value": "python3-x"}]}
    for listed, wanted in (
        ([], ["A"]),
        ([{"purl": "pkg:deb/debian/python3-x@1?distro=debian-12&upstream=x"}], []),
    ):
        document = {"bomFormat": "CycloneDX", "components": [claim, *listed]}
        _, found = scan_bill(tmp_path, "bom.json", json.dumps(document).encode(), capsys)
        assert [each["id"] for each in found["vulnerabilities"]] == wanted


DEB = (
    '{"bomFormat": "CycloneDX", "components": [{"purl": "pkg:deb/debian/libssl3@3.0.9-1?distro=debian-12"}]}'
)
NONSENSE = {
    "empty": b"",
    "cut off": b'{"bomFormat": "CycloneDX", "components": [{"purl"',
    "another document": b'{"a": 1}',
    "a list": b"[]",
    "deep": b'{"bomFormat": "CycloneDX", "components": ' + b"[" * 100_000,
    "deep components": b'{"bomFormat": "CycloneDX", "components": ['
    + b'{"components": [' * 300
    + b"]}" * 300
    + b"]}",
    "no components": b'{"bomFormat": "CycloneDX"}',
    "wrong types": b'{"bomFormat": "CycloneDX", "components": {"purl": 1}}',
    "wrong entries": b'{"bomFormat": "CycloneDX", "components": [1, null, {"purl": []}, {"components": 5}]}',
    "halves of surrogate pairs": json.dumps(
        {
            "bomFormat": "CycloneDX",
            "components": [{"purl": "pkg:pypi/x\ud800@1"}, {"purl": "pkg:pypi/x@1\udcff"}],
        }
    ).encode(),
    "line breaks": b'{"bomFormat": "CycloneDX", "components": [{"purl": "pkg:pypi/x%0aclean@1"}]}',
    "wrong urls": b'{"bomFormat": "CycloneDX", "components": [{"purl": "pkg:pypi/x"}, {"purl": "http://a@1"}]}',
    "wrong spdx": b'{"spdxVersion": "SPDX-2.3", "packages": {}}',
    "wrong references": (
        b'{"spdxVersion": "SPDX-2.3", "packages": [{"externalRefs": [[], {"referenceType": "purl"}]}]}'
    ),
    "not text": b"\xff\xfe\x00" * 100,
    "a huge number": b'{"bomFormat": "CycloneDX", "version": ' + b"9" * 10_000 + b"}",
    "one of two": json.dumps(
        {"bomFormat": "CycloneDX", "components": [{"purl": "pkg:pypi/clean@1"}, {"name": "other"}]}
    ).encode(),
    "no sources": DEB.encode(),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_a_bill_of_materials_is_never_clean(name, tmp_path, capsys):
    status, found = scan_bill(tmp_path, "bom.json", NONSENSE[name], capsys)
    assert status == 2
    (line,) = found["not_judged"]
    assert "could not be judged" in line
    assert "\n" not in line


def test_a_release_with_thousands_of_digits_is_not_judged(tmp_path, capsys):
    system = {"type": "operating-system", "name": "ubuntu", "version": "9" * 5000}
    document = {"bomFormat": "CycloneDX", "components": [system, {"purl": "pkg:deb/ubuntu/x@1"}]}
    status, found = scan_bill(tmp_path, "bom.json", json.dumps(document).encode(), capsys)
    assert (status, len(found["not_judged"])) == (2, 2)


def half_written(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "zeros":
        path.write_bytes(whole[:50] + bytes(len(whole) - 50))
    elif how == "damaged record":
        path.write_bytes(whole.replace(b'"affected"', b'"affocted"', 1))
    elif how == "no records":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("README", "nothing")
    elif how == "record is cut off":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("A.json", json.dumps(RECORD)[:-30])
    elif how == "front is missing":
        path.write_bytes(whole[60:])
    elif how == "lies about sizes":
        listed = whole.index(b"PK\x01\x02") + 20
        path.write_bytes(whole[:listed] + b"\xf0\xff\xff\xff" * 2 + whole[listed + 8 :])
    elif how == "damaged compressed record":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("A.json", json.dumps(RECORD))
        packed = bytearray(path.read_bytes())
        packed[60] ^= 1
        path.write_bytes(packed)
    elif how == "a pipe":
        path.unlink()
        os.mkfifo(path)
    elif how == "being written":
        path.rename(path.with_name("all.zip.part"))
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    "how",
    [
        *("cut off", "zeros", "damaged record", "no records", "record is cut off", "a pipe", "being written"),
        *("a directory", "front is missing", "lies about sizes", "damaged compressed record"),
    ],
)
def test_a_half_written_mirror_is_never_clean(how, tmp_path, capsys):
    images.mirror(tmp_path / "osv", RECORD)
    half_written(archive_of(tmp_path / "osv"), how)
    document = {"bomFormat": "CycloneDX", "components": [{"purl": "pkg:pypi/x@3"}]}
    (tmp_path / "bom.json").write_text(json.dumps(document))
    status = main(["scan", str(tmp_path / "bom.json"), "--advisories", str(tmp_path / "osv"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (status, len(found["not_judged"])) == (2, 1), found
    assert found["advisories_complete"] is False
    assert main(["scan", str(tmp_path / "bom.json"), "--advisories", str(tmp_path / "osv")]) == 2
    shown = capsys.readouterr()
    assert "1 package, whose vulnerabilities could not be judged" in shown.out
    assert shown.err.startswith("gipfel: could not be judged: ")


def test_an_old_or_missing_mirror_is_never_clean(tmp_path, capsys):
    images.mirror(tmp_path / "osv", {**RECORD, "modified": "2020-01-01T00:00:00Z"})
    for mirror, name, version, shown in (
        ("osv", "y", "3", "1 package, whose vulnerabilities could not be judged"),
        ("osv", "x", "1", "1 package, 1 vulnerability, and others could not be judged"),
        ("none", "x", "1", "1 package, whose vulnerabilities could not be judged"),
    ):
        document = {"bomFormat": "CycloneDX", "components": [{"purl": f"pkg:pypi/{name}@{version}"}]}
        (tmp_path / "bom.json").write_text(json.dumps(document))
        arguments = ["scan", str(tmp_path / "bom.json"), "--advisories", str(tmp_path / mirror)]
        assert main([*arguments, "--fail-on", "critical"]) == 2
        written = capsys.readouterr()
        assert shown in written.out
        assert written.err.count("could not be judged: ") == 1


@pytest.mark.parametrize("events", [(), ({"fixed": "2"},), ({"last_affected": "3"},), ({"weird": "0"},)])
def test_versions_that_begin_nowhere_are_not_judged(events, tmp_path, capsys):
    root = images.put(
        tmp_path / "root", {"usr/lib/python3/site-packages/x-1.dist-info/METADATA": images.metadata("x", "1")}
    )
    osv = images.mirror(tmp_path / "osv", images.advisory("A", "PyPI", "x", *events))
    assert main(["scan", str(root), "--advisories", str(osv)]) == 2
    assert "A.json could not be judged for x 1" in capsys.readouterr().err


def test_a_time_in_the_future_does_not_keep_a_mirror_fresh(tmp_path, capsys):
    root = images.put(
        tmp_path / "root", {"usr/lib/python3/site-packages/x-3.dist-info/METADATA": images.metadata("x", "3")}
    )
    future = {**RECORD, "id": "F", "modified": "2999-01-01T00:00:00Z"}
    old = {**RECORD, "id": "O", "modified": "2001-01-01T00:00:00Z"}
    osv = images.mirror(tmp_path / "osv", future, old)
    assert main(["scan", str(root), "--advisories", str(osv)]) == 2
    assert "days old. Update the mirror" in capsys.readouterr().err
    images.mirror(osv, RECORD, future)
    assert main(["scan", str(root), "--advisories", str(osv)]) == 0
