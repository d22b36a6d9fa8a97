"""Root directories with package databases, and mirrors of OSV, as the tests write them."""

import hashlib
import io
import json
import sqlite3
import struct
import subprocess
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

_DPKG = """Package: libssl3
Status: install ok installed
Source: openssl (3.0.9-1)
Version: 3.0.9-1+b2
Description: first
 more

Package: removed
Status: deinstall ok config-files
Version: 1.0

Package: python3-urllib3
Status: install ok installed
Source: python-urllib3
Version: 1.26.12-1
"""
_APK = """P:musl
V:1.2.4-r1
o:musl
F:lib
R:ld-musl.so

P:py3-idna
V:3.4-r4
o:py3-idna
F:usr/lib/python3.11/site-packages/idna-3.4.dist-info
R:METADATA
"""
_GO_START = bytes.fromhex("3077af0c9274080241e1c107e6d618e6")
_GO_END = bytes.fromhex("f932433186182072008242104116d8f2")


def put(root: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below a directory."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText\nName: not-this\n"


def go_program() -> bytes:
    modules = "path\tx\nmod\texample.com/x\t(devel)\t\ndep\tgolang.org/x/net\tv0.7.0\th1:a=\n"
    modules += "dep\texample.com/old\tv1.0.0\n=>\texample.com/new\tv1.2.3\th1:b=\n"
    return (
        b"\x7fELF"
        + bytes(40)
        + b"\xff Go buildinf:\x08\x02"
        + bytes(16)
        + b"\x08go1.20.1"
        + _GO_START
        + (modules.encode() + _GO_END)
    )


def debian(root: Path) -> Path:
    """An image with packages of dpkg, Python, Conda, npm and Go; urllib3 belongs to dpkg."""
    owned = "usr/lib/python3/dist-packages/urllib3-1.26.12.egg-info"
    lock = {"packages": {"": {"name": "app"}, "node_modules/lodash": {"version": "4.17.20"}}}
    return put(
        root,
        {
            "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
            "var/lib/dpkg/status": _DPKG,
            "var/lib/dpkg/info/python3-urllib3.list": f"/.\n/{owned}\n/{owned}/PKG-INFO\n",
            f"{owned}/PKG-INFO": metadata("urllib3", "1.26.12"),
            "usr/local/lib/python3.11/site-packages/Jinja2-2.4.1.dist-info/METADATA": metadata(
                "Jinja2", "2.4.1"
            ),
            "opt/conda/conda-meta/zlib-1.2.13.json": json.dumps({"name": "zlib", "version": "1.2.13"}),
            "app/package-lock.json": json.dumps(lock),
            "app/node_modules/@a/b/package.json": json.dumps({"name": "@a/b", "version": "1.0.0"}),
            "usr/local/bin/tool": go_program(),
        },
    )


def alpine(root: Path) -> Path:
    path = "usr/lib/python3.11/site-packages/idna-3.4.dist-info/METADATA"
    files = {"etc/os-release": "ID=alpine\nVERSION_ID=3.99.4\n", "lib/apk/db/installed": _APK}
    return put(root, {**files, path: metadata("idna", "3.4")})


def rpm_header(name: str, version: str, release: str, epoch: int | None = None) -> bytes:
    """A header as rpm stores it: an index of 16 bytes an entry, then the values."""
    entries, store = [], b""
    texts = {1000: name, 1001: version, 1002: release, 1044: f"{name}-{version}-{release}.src.rpm"}
    for tag, text in texts.items():
        entries.append((tag, 6, len(store), 1))
        store += text.encode() + b"\0"
    if epoch is not None:
        store += bytes(-len(store) % 4)
        entries.append((1003, 4, len(store), 1))
        store += struct.pack(">I", epoch)
    index = b"".join(struct.pack(">IIII", *entry) for entry in sorted(entries))
    return struct.pack(">II", len(entries), len(store)) + index + store


def rpm_database(path: Path, headers: list[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
    database.executemany("INSERT INTO Packages (blob) VALUES (?)", [(each,) for each in headers])
    database.commit()
    database.close()


def rocky(root: Path) -> Path:
    put(root, {"etc/os-release": 'ID="rocky"\nVERSION_ID="9.2"\n'})
    headers = [rpm_header("openssl", "3.0.1", "47.el9", 1), rpm_header("bash", "5.1.8", "6.el9")]
    rpm_database(root / "var/lib/rpm/rpmdb.sqlite", headers)
    return root


def oci_archive(path: Path, layers: list[dict[str, bytes]]) -> Path:
    """An OCI archive of these layers."""

    def tarred(files: dict[str, bytes]) -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return stream.getvalue()

    blobs = {f"l{number}": tarred(files) for number, files in enumerate(layers)}
    blobs["m"] = json.dumps({"layers": [{"digest": f"sha256:{name}"} for name in blobs]}).encode()
    index = json.dumps({"manifests": [{"digest": "sha256:m"}]}).encode()
    files = {"index.json": index, **{f"blobs/sha256/{name}": blob for name, blob in blobs.items()}}
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_oci_image(path: Path, files: dict[str, bytes]) -> None:
    """Write an OCI archive of one layer that podman loads: with real digests and a configuration."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
    blobs: dict[str, bytes] = {}

    def add(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    one = add(layer.getvalue(), "layer.v1.tar")
    about = {"architecture": "amd64", "os": "linux", "config": {}, "history": [{"created_by": "a test"}]}
    about["rootfs"] = {"type": "layers", "diff_ids": [one["digest"]]}
    config = add(json.dumps(about).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "config": config, "layers": [one]}
    manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json"
    listed = add(json.dumps(manifest).encode(), "manifest.v1+json")
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode()
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    with tarfile.open(path, "w") as archive:
        for name, content in blobs.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))


def advisory(number: str, ecosystem: str, name: str, *events: dict[str, str], **further) -> dict:
    affected = {
        "package": {"ecosystem": ecosystem, "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
    }
    modified = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"id": number, "modified": modified, "summary": "s", "affected": [affected], **further}


def mirror(root: Path, *records: dict) -> Path:
    """A mirror with each record in the archive of its ecosystem."""
    families: dict[str, list[dict]] = {}
    for record in records:
        family = record["affected"][0]["package"]["ecosystem"].partition(":")[0]
        families.setdefault(family, []).append(record)
    for family, mine in families.items():
        (root / family).mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(root / family / "all.zip", "w") as archive:
            for record in mine:
                archive.writestr(f"{record['id']}.json", json.dumps(record))
    return root


_HELLO = """\
Package: gipfel-hello
Version: 1.2-3
Architecture: all
Maintainer: Ada <ada@example.org>
Description: nothing
"""


def write_repository(folder: Path) -> None:
    """Write a package of Debian into a directory, and the list by which apt finds it there."""
    control = folder / "hello/DEBIAN/control"
    control.parent.mkdir(parents=True)
    control.write_text(_HELLO)
    deb = folder / "gipfel-hello.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", folder / "hello", deb], check=True)
    index_repository(folder)


def index_repository(folder: Path, suite: str = "") -> None:
    """Write the lists by which apt finds the packages of Debian in a directory."""
    entries = []
    for deb in sorted(folder.glob("*.deb")):
        command = ["dpkg-deb", "-f", deb]
        control = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        entries.append(f"{control}Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n")
    packages = "\n".join(entries)
    (folder / "Packages").write_text(packages)
    if suite:
        digest = hashlib.sha256(packages.encode()).hexdigest()
        lines = [f"Suite: {suite}", f"Codename: {suite}", "Date: Fri, 27 Nov 2026 00:00:00 UTC", "SHA256:"]
        lines.append(f" {digest} {len(packages.encode())} Packages")
        (folder / "Release").write_text("\n".join(lines) + "\n")
