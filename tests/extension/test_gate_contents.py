"""Permissions, secrets and ended support in directories, SquashFS images and OCI archives; exceptions."""

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from datetime import date
from pathlib import Path

import model_zoo as zoo
import package_images as images
import pytest

from gipfel_extension.cli import main
from gipfel_extension.gate.contents.entries import Unreadable, squashfs_entries, squashfs_files
from gipfel_extension.gate.contents.scan import ContentScan
from gipfel_extension.gate.contents.support import last_day, support_finding, unknown_support
from gipfel_extension.gate.scan.targets import read_exceptions

needs_squashfs = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n-----END OPENSSH"
TOKEN = "hf_" + "a1" * 15


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def tree(root: Path) -> Path:
    images.put(
        root,
        {
            "root/.ssh/id_ed25519": KEY,
            "root/.ssh/id_rsa": KEY.replace("OPENSSH", "ENCRYPTED"),
            "app/.env": f"HF_TOKEN={TOKEN}\n",
            "root/.git-credentials": "https://me:secret@example.com\n",
            "usr/lib/python3/dist-packages/tests/key.pem": KEY,
            "app/example.txt": "AKIAIOSFODNN7EXAMPLE",
            "usr/bin/su": "x",
            "usr/local/bin/door": "x",
            "etc/open.conf": "x",
            "srv/notes": "x",
        },
    )
    for name, mode in (("usr/bin/su", 0o4755), ("usr/local/bin/door", 0o4755), ("etc/open.conf", 0o666)):
        (root / name).chmod(mode)
    (root / "srv/notes").chmod(0o646)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


SECRETS = {"root/.ssh/id_ed25519": "high", "root/.ssh/id_rsa": "medium", "app/.env": "high"}
SECRETS["root/.git-credentials"] = "high"


def check(scan: ContentScan, target: Path, separator: str) -> None:
    assert scan.not_judged == []
    *files, whole = scan.items
    found = {each.path.removeprefix(f"{target}{separator}"): each.findings[0].severity for each in files}
    assert found == SECRETS
    assert whole.path == str(target)
    assert [(each.rule, each.severity) for each in whole.findings] == [
        ("set-uid", "high"),
        ("world-writable", "high"),
        ("world-writable", "medium"),
        ("set-uid", "low"),
    ]
    door, conf, notes, usual = (each.message for each in whole.findings)
    assert ("usr/local/bin/door" in door, "etc/open.conf" in conf) == (True, True)
    assert ("srv/notes" in notes, "tmp" in notes, "usr/bin/su" in usual) == (True, False, True)


def test_a_directory(tmp_path):
    root = tree(tmp_path / "root")
    check(ContentScan(root, image=False), root, "/")


def squashed(root: Path, image: Path) -> Path:
    command = ["mksquashfs", str(root), str(image), "-quiet", "-no-progress", "-noappend"]
    subprocess.run(command, check=True)
    return image


@needs_squashfs
def test_a_squashfs_image(tmp_path):
    root = tree(tmp_path / "root")
    # Names and contents that a stream could be confused by: another name, an empty file, spaces, bytes.
    os.link(root / "srv/notes", root / "srv/again")
    images.put(root, {"srv/empty": "", "srv/a b\\c": "1", "srv/zero": bytes(300_000)})
    (root / os.fsdecode(b"srv/\xff\xfe")).write_text("x")
    image = squashed(root, tmp_path / "image.sqsh")
    check(ContentScan(image, image=True), image, "!")
    entries = squashfs_entries(image)
    contents = {each.path: stream.read() for each, stream in squashfs_files(image, entries)}
    assert contents["srv/a b\\c"] == b"1"
    assert contents["srv/zero"] == bytes(300_000)
    assert contents[os.fsdecode(b"srv/\xff\xfe")] == b"x"
    assert ("srv/notes" in contents) != ("srv/again" in contents)


@needs_squashfs
@pytest.mark.parametrize(
    "target",
    [
        "x\n#\n# START OF DATA - DO NOT MODIFY\n#\n",
        "x\n-rw-r--r-- 0/0                       3 2026-11-23 07:02 /fake",
        "x\nfake R 1 644 0 0 3 0",
    ],
)
def test_the_target_of_a_link_can_hide_nothing(target, tmp_path):
    root = images.put(tmp_path / "root", {"z/.env": TOKEN})
    (root / "a").symlink_to(target)
    image = squashed(root, tmp_path / "image.sqsh")
    scan = ContentScan(image, image=True)
    assert scan.items or scan.not_judged
    if not scan.items:
        assert "line break" in scan.not_judged[0]


@needs_squashfs
def test_a_name_with_a_line_break_is_not_judged(tmp_path):
    root = images.put(tmp_path / "root", {"a\nb": "x"})
    with pytest.raises(Unreadable, match="line break"):
        squashfs_entries(squashed(root, tmp_path / "image.sqsh"))


@needs_squashfs
def test_an_image_that_ends_early_is_not_judged(tmp_path):
    root = images.put(tmp_path / "root", {"a": os.urandom(2 << 20), "b": TOKEN})
    image = squashed(root, tmp_path / "image.sqsh")
    content = bytearray(image.read_bytes())
    content[100_000:110_000] = bytes(10_000)
    image.write_bytes(content)
    scan = ContentScan(image, image=True)
    # What is stored uncompressed has no checksum: the secret is found, or the image is not judged.
    assert scan.items or scan.not_judged


def test_a_secret_in_a_lower_layer_is_found(tmp_path):
    first = {"./app/.env": TOKEN.encode(), "etc/os-release": b"ID=debian\nVERSION_ID=12\n"}
    archive = images.oci_archive(tmp_path / "image.tar", [first, {"app/.wh..env": b""}])
    scan = ContentScan(archive, image=True)
    assert [each.path for each in scan.items] == [f"{archive}!app/.env"]


def test_the_support_of_distributions():
    def release(name, version):
        return {"ID": name, "VERSION_ID": version}

    assert last_day(release("debian", "12")) == date(2028, 6, 30)
    assert last_day(release("alpine", "3.18.4")) == date(2025, 5, 9)
    assert last_day(release("rocky", "9.2")) == date(2032, 5, 31)
    assert support_finding(release("debian", "12"), date(2028, 6, 30)) is None
    finding = support_finding(release("ubuntu", "18.04"), date(2026, 1, 1))
    assert finding.severity == "high"
    assert "2021-04-30" not in finding.message
    assert "not known" in unknown_support(release("debian", "99"))
    assert unknown_support(release("arch", "")) == unknown_support({}) == ""


def exceptions_file(path: Path, until: str, rule: str = "secret", further: str = "") -> Path:
    path.write_text(f'[[exception]]\nrule = "{rule}"\nreason = "a test key"\nuntil = {until}\n{further}')
    return path


def scanned(capsys, *words: str) -> tuple[int, dict]:
    status = main(["scan", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_an_exception_holds_until_its_last_day(tmp_path, capsys):
    root = images.put(tmp_path / "root", {".env": TOKEN})
    assert scanned(capsys, str(root))[0] == 1
    file = exceptions_file(tmp_path / "e.toml", "2999-12-31", further='path = "*/.env"\n')
    status, document = scanned(capsys, str(root), "--exceptions", str(file))
    assert (status, document["items"][0]["findings"]) == (0, [])
    assert document["excepted"] == [
        {
            "path": str(root / ".env"),
            "rule": "secret",
            "reason": "a test key",
            "until": "2999-12-31",
            "by": file.owner(),
        }
    ]
    exceptions_file(file, "2020-01-01")
    assert main(["scan", str(root), "--exceptions", str(file)]) == 1
    assert "ended on 2020-01-01" in capsys.readouterr().err
    exceptions_file(file, "2999-12-31", further='path = "*/other"\n')
    assert main(["scan", str(root), "--exceptions", str(file)]) == 1


def test_an_exception_for_an_advisory(tmp_path, capsys):
    root = images.alpine(tmp_path / "root")
    osv = images.mirror(
        tmp_path / "osv",
        images.advisory("A", "Alpine:v3.99", "musl", {"introduced": "0"}, aliases=["CVE-2024-1"]),
    )
    file = exceptions_file(tmp_path / "e.toml", "2999-12-31", "CVE-2024-1", 'package = "musl"\n')
    words = (str(root), "--advisories", str(osv), "--exceptions", str(file))
    _, document = scanned(capsys, *words)
    assert (document["vulnerabilities"], document["excepted"][0]["rule"]) == ([], "A")
    exceptions_file(file, "2999-12-31", "CVE-2024-1", 'package = "zlib"\n')
    assert scanned(capsys, *words)[1]["excepted"] == []


def test_what_is_not_understood_can_be_excepted(tmp_path, capsys):
    file = tmp_path / "model.pt"
    file.write_bytes(b"\x28\xb5\x2f\xfdxx")
    assert scanned(capsys, str(file))[0] == 2
    accepted = exceptions_file(tmp_path / "e.toml", "2999-12-31", "not-understood")
    assert scanned(capsys, str(file), "--exceptions", str(accepted))[0] == 0


@pytest.mark.parametrize(
    "text",
    [
        '[[exception]]\nrule = "x"\nuntil = 2999-01-01\n',
        '[[exception]]\nrule = "x"\nreason = "why"\n',
        '[[exception]]\nrule = "x"\nreason = "why"\nuntil = "2999-01-01"\n',
        '[[exception]]\nrule = "x"\nreason = "why"\nuntil = 2999-01-01\nunknown = 1\n',
        "exception = 3\n",
        "broken",
        "\udcff",
    ],
)
def test_exceptions_need_a_reason_and_a_last_day(text, tmp_path, capsys):
    file = tmp_path / "e.toml"
    file.write_text(text, errors="surrogateescape")
    assert main(["scan", str(tmp_path), "--exceptions", str(file)]) == 2
    assert "until = 2027-01-31" in capsys.readouterr().err
    with pytest.raises(Exception, match=str(file)):
        read_exceptions(file, today=date(2026, 1, 1))


def zoo_image(tmp_path: Path, kind: str) -> Path:
    files = {f"models/{name}": content for name, (content, _) in {**zoo.BENIGN, **zoo.HOSTILE}.items()}
    if kind == "tar":
        return images.oci_archive(tmp_path / "image.tar", [files])
    if shutil.which("mksquashfs") is None:
        pytest.skip("needs squashfs-tools")
    return squashed(images.put(tmp_path / "root", files), tmp_path / "image.sqsh")


@pytest.mark.parametrize("kind", ["sqsh", "tar"])
def test_the_zoo_has_the_same_verdicts_in_an_image(kind, tmp_path):
    image = zoo_image(tmp_path, kind)
    scan = ContentScan(image, image=True)
    found = {each.path.removeprefix(f"{image}!models/"): each.verdict for each in scan.items}
    found.pop(str(image), None)
    wanted = {name: verdict for name, (_, verdict) in {**zoo.BENIGN, **zoo.HOSTILE}.items()}
    secrets = {name for name, verdict in found.items() if verdict == "plain"}
    assert {name: found.get(name, "other") for name in wanted} == wanted, secrets
    assert (scan.not_judged, scan.other_files) == ([], sum(each == "other" for each in wanted.values()))
    assert not Path("/tmp/gipfel-gate-canary").exists()


def stored(tmp_path: Path, name: str, content: bytes):
    archive = images.oci_archive(tmp_path / "image.tar", [{name: content}])
    scan = ContentScan(archive, image=True)
    return scan, [(each.path.partition("!")[2], each.verdict) for each in scan.items]


def test_large_files_of_an_image_are_judged_forward(tmp_path):
    length = 6 << 20
    header = json.dumps({"a": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}).encode()
    tensors = len(header).to_bytes(8, "little") + header + bytes(length)
    assert stored(tmp_path, "m.safetensors", tensors)[1] == [("m.safetensors", "plain")]
    assert stored(tmp_path, "m.safetensors", tensors + b"x")[1] == [("m.safetensors", "not understood")]
    # Tensors for one program, an archive with code for another.
    both = tensors + zoo.zipped({"data.pkl": zoo.SYSTEM})
    assert stored(tmp_path, "m.safetensors", both)[1] == [("m.safetensors", "not understood")]
    large = zoo.zipped({"x/data.pkl": zoo.SYSTEM, "x/data/0": os.urandom(length)})
    assert stored(tmp_path, "m.pt", large)[1] == [("m.pt", "malicious")]
    assert stored(tmp_path, "m.bin", zoo.SYSTEM + bytes(length))[1] == [("m.bin", "malicious")]


def test_files_of_libraries_are_counted_unless_they_are_malicious(tmp_path):
    needs_code = zoo.call("pandas", "DataFrame")
    place = "usr/lib/python3/dist-packages/x"
    scan, found = stored(tmp_path, f"{place}/data.pkl", needs_code)
    assert (found, len(scan.not_scanned)) == ([], 1)
    assert stored(tmp_path, f"{place}/data.pkl", zoo.SYSTEM)[1] == [(f"{place}/data.pkl", "malicious")]
    assert stored(tmp_path, f"{place}.pth", b"import x\n")[1] == [(f"{place}.pth", "needs code")]
    assert stored(tmp_path, "srv/data.pkl", needs_code)[1] == [("srv/data.pkl", "needs code")]


def archive_with(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(zoo.tarred(files))
    return path


def verdicts(path: Path) -> dict[str, str]:
    scan = ContentScan(path, image=True)
    assert scan.not_judged == []
    return {item.path.partition("!")[2]: item.verdict for item in scan.items}


def test_every_image_of_a_docker_archive_is_scanned(tmp_path):
    images_of = [{"Layers": ["a/layer.tar"]}, {"Layers": ["a/layer.tar", "b/layer.tar"]}]
    files = {
        "a/layer.tar": zoo.tarred({"app/w.pkl": zoo.BENIGN["values.pkl"][0]}),
        "b/layer.tar": zoo.tarred({"app/evil.pkl": zoo.SYSTEM}),
        "manifest.json": json.dumps(images_of).encode(),
    }
    path = archive_with(tmp_path / "both.tar", files)
    assert verdicts(path) == {"app/w.pkl": "plain", "app/evil.pkl": "malicious"}


def test_every_manifest_of_an_index_is_scanned_but_what_a_build_says(tmp_path):
    def manifest(layer: str, **further: str) -> bytes:
        return json.dumps({"layers": [{"digest": f"sha256:{layer}", **further}]}).encode()

    index = {"manifests": [{"digest": f"sha256:{each}"} for each in ("first", "about", "inner")]}
    inner = {"manifests": [{"digest": "sha256:second"}, {"digest": "sha256:not-here"}]}
    files = {
        "index.json": json.dumps(index).encode(),
        "blobs/sha256/first": manifest("a"),
        "blobs/sha256/about": manifest("c", mediaType="application/vnd.in-toto+json"),
        "blobs/sha256/inner": json.dumps(inner).encode(),
        "blobs/sha256/second": manifest("b"),
        "blobs/sha256/a": zoo.tarred({"w.pkl": zoo.BENIGN["values.pkl"][0]}),
        "blobs/sha256/b": zoo.tarred({"evil.pkl": zoo.SYSTEM}),
        "blobs/sha256/c": b"{}",
    }
    path = archive_with(tmp_path / "index.tar", files)
    assert verdicts(path) == {"w.pkl": "plain", "evil.pkl": "malicious"}


def test_a_broken_layer_hides_no_other(tmp_path):
    files = {
        "a.tar": b"not a tar file" * 100,
        "b.tar": zoo.tarred({"evil.pkl": zoo.SYSTEM}),
        "manifest.json": json.dumps([{"Layers": ["a.tar", "b.tar"]}]).encode(),
    }
    scan = ContentScan(archive_with(tmp_path / "broken.tar", files), image=True)
    assert [item.verdict for item in scan.items] == ["malicious"]
    assert len(scan.not_judged) == 1


def test_images_that_explode_are_not_unpacked(tmp_path, capsys):
    sizes = (3 << 30, 0o777_7777_7777)
    for number, size in enumerate(sizes):
        head = tarfile.TarInfo("big")
        head.size = size
        layer = gzip.compress(head.tobuf() + bytes(1 << 20))
        path = tmp_path / f"{number}.tar"
        with tarfile.open(path, "w") as archive:
            manifest = json.dumps([{"Config": "c.json", "Layers": ["l.tgz"]}]).encode()
            for name, content in (("manifest.json", manifest), ("c.json", b"{}"), ("l.tgz", layer)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    for path in (tmp_path / "0.tar", tmp_path / "1.tar"):
        began = time.process_time()
        assert main(["scan", str(path), "--json"]) == 2
        lines = json.loads(capsys.readouterr().out)["not_judged"]
        assert any("too much for its size" in line for line in lines), lines
        assert time.process_time() - began < 5
