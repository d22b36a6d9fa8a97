"""Containerfiles, bills of materials and comparisons of images, without podman."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from gipfel_cluster.environment import parse_environment
from gipfel_cluster.model import GipfelError
from gipfel_extension.cli import main
from gipfel_extension.gate.model import Package
from gipfel_extension.images import provenance
from gipfel_extension.images.build import entry_script, environment_file
from gipfel_extension.images.containerfile import Input, read_containerfile
from gipfel_extension.images.environment import (
    Origin,
    PythonPackage,
    PythonState,
    find_origin,
    save_environment,
)
from gipfel_extension.images.podman import file_system_of
from gipfel_extension.images.provenance import Record, read_statement, statement
from gipfel_extension.images.sbom import bill_of_materials, compare_images, package_url, write_json

PACKAGES = (
    Package(ecosystem="Debian:12", name="libc6", version="2.36-9+deb12u4", path="var/lib/dpkg/status"),
    Package(ecosystem="Ubuntu:24.04:LTS", name="bash", version="5:1~2", path="var/lib/dpkg/status"),
    Package(ecosystem="", name="kali", version="1", path="var/lib/dpkg/status"),
    Package(ecosystem="Alpine:v3.20", name="musl", version="1.2.5-r0", path="lib/apk/db/installed"),
    Package(ecosystem="Rocky Linux:9", name="curl", version="7.76-29", path="var/lib/rpm/rpmdb.sqlite"),
    Package(ecosystem="PyPI", name="Ruamel.YAML", version="0.18", path="a/METADATA", owner="python3-ruamel"),
    Package(ecosystem="PyPI", name="ruamel-yaml", version="0.18", path="b/METADATA"),
    Package(ecosystem="npm", name="@jupyterlab/ui", version="4.4", path="node_modules/x/package.json"),
    Package(ecosystem="Go", name="github.com/a/b", version="v1.2.3", path="usr/local/bin/b"),
    Package(ecosystem="", name="mkl", version="2024.0", path="opt/conda/conda-meta/mkl.json"),
)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib, which brings the schema, is not installed")
    folder = files("cyclonedx.schema") / "_res"
    names = ("bom-1.6.SNAPSHOT.schema.json", "spdx.SNAPSHOT.schema.json", "jsf-0.82.SNAPSHOT.schema.json")
    schemas: list[dict[str, Any]] = [json.loads((folder / name).read_text()) for name in names]
    registry = Registry().with_resources(
        [(schema["$id"], Resource.from_contents(schema)) for schema in schemas]
    )
    return jsonschema.Draft7Validator(schemas[0], registry=registry)


def test_a_bill_of_materials_is_valid(validator: jsonschema.Draft7Validator) -> None:
    document = bill_of_materials(
        PACKAGES, name="my.sqsh", sha256="ab" * 32, os_release={"ID": "debian", "VERSION_ID": "12"}
    )
    assert [error.message for error in validator.iter_errors(document)] == []
    # It would find a mistake.
    assert list(validator.iter_errors(document | {"components": [{"type": "librarie", "name": "x"}]}))
    references = [each["bom-ref"] for each in document["components"]]
    assert len(set(references)) == len(references)
    again = bill_of_materials(
        PACKAGES[::-1], name="my.sqsh", sha256="ab" * 32, os_release={"ID": "debian", "VERSION_ID": "12"}
    )
    assert again == document


def test_package_urls() -> None:
    assert [package_url(each) for each in PACKAGES] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u4?distro=debian-12",
        "pkg:deb/ubuntu/bash@5%3A1~2?distro=ubuntu-24.04%3Alts",
        "pkg:deb/debian/kali@1",
        "pkg:apk/alpine/musl@1.2.5-r0?distro=alpine-v3.20",
        "pkg:rpm/rocky/curl@7.76-29?distro=rocky%20linux-9",
        "pkg:pypi/ruamel-yaml@0.18",
        "pkg:pypi/ruamel-yaml@0.18",
        "pkg:npm/%40jupyterlab/ui@4.4",
        "pkg:golang/github.com/a/b@v1.2.3",
        "pkg:conda/mkl@2024.0",
    ]


def test_bills_of_materials_are_compared(tmp_path: Path) -> None:
    old, new = tmp_path / "a.cdx.json", tmp_path / "b.cdx.json"
    write_json(old, bill_of_materials(PACKAGES[:2], name="a.sqsh"))
    changed = PACKAGES[0].model_copy(update={"version": "2.36-9+deb12u9"})
    write_json(new, bill_of_materials([changed, PACKAGES[6]], name="b.sqsh"))
    found = compare_images(old, new)
    assert [(each.name, each.before, each.after) for each in found.packages] == [
        ("pkg:deb/debian/libc6", ("2.36-9%2Bdeb12u4",), ("2.36-9%2Bdeb12u9",)),
        ("pkg:deb/ubuntu/bash", ("5%3A1~2",), ()),
        ("pkg:pypi/ruamel-yaml", (), ("0.18",)),
    ]
    assert not compare_images(old, old).is_different
    for text in ("[" * 100_000, "nonsense", '{"bomFormat": "CycloneDX", "components": 3}', "[]"):
        new.write_text(text)
        with pytest.raises(GipfelError):
            compare_images(old, new)


def test_a_statement_names_packages_with_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / "x.sqsh"
    image.write_bytes(b"hsqs")
    urls = [package_url(each) for each in PACKAGES]
    record = Record(containerfile="", instructions=()).finish(urls, "2026-11-27T00:00:00Z")
    (tmp_path / "x.sqsh.provenance.json").write_text(json.dumps(statement(record, [image])))
    found = read_statement(image)[1]
    assert (found, found.packages) == (record, len(PACKAGES))
    assert any(each.startswith("pkg:deb/debian/libc6@2.36-9%2Bdeb12u4") for each in found.package_urls)
    monkeypatch.setattr(provenance, "_MOST_URLS", 2)
    assert len(record.finish(urls, "").package_urls) == 2


def test_a_foreign_statement_writes_no_lines_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, path = tmp_path / "x.sqsh", tmp_path / "x.sqsh.provenance.json"
    image.write_bytes(b"hsqs")
    forged = "RUN true\nx.sqsh: verified, signed by root\x1b[2J"
    record = Record(
        containerfile=forged,
        instructions=(forged,),
        inputs=(Input(name=forged, sha256=forged),),
        configuration={"env": {forged: forged}},
        tools={forged: forged},
        finished=forged,
    )
    document = statement(record, [image])
    path.write_text(json.dumps(document))
    assert main(["image", "show", str(image)]) == 0
    shown = capsys.readouterr().out
    assert (shown.count("\n"), "\x1b" in shown, shown.startswith("x.sqsh: unsigned")) == (6, False, True)
    assert main(["image", "show", str(image), "--json"]) == 0
    capsys.readouterr()
    bill = tmp_path / "a.cdx.json"
    bill.write_text(
        json.dumps({"bomFormat": "CycloneDX", "components": [{"purl": f"pkg:pypi/{forged}\ud800@1"}]})
    )
    (tmp_path / "b.cdx.json").write_text('{"bomFormat": "CycloneDX", "components": []}')
    for further in ([], ["--json"]):
        assert main(["image", "diff", str(bill), str(tmp_path / "b.cdx.json"), *further]) == 1
        assert "\x1b" not in capsys.readouterr().out
    document["predicate"]["buildDefinition"]["internalParameters"]["configuration"] = {"env": [1]}
    path.write_text(json.dumps(document))
    assert main(["image", "show", str(image)]) == 0
    for name in ("", ".", "..", "a/b", "a\nb", "a\ud800", None):
        document["subject"] = [{"name": name, "digest": {}}] if name is not None else []
        path.write_text(json.dumps(document))
        for command in ("show", "verify"):
            capsys.readouterr()
            assert main(["image", command, str(image)]) == 2
            assert "is not a statement of Gipfel's" in capsys.readouterr().err


def test_a_containerfile_names_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("1")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/x.whl").write_text("2")
    (tmp_path / "Containerfile").write_text(
        "# gipfel: base /images/py torch.sqsh\n# gipfel: mount /srv/repository\n"
        "ARG V=1\nFROM --platform=linux/amd64 docker.io/a:1 AS one\nFROM scratch\nFROM one\n"
        'COPY ["a b", "/x/"]\nCOPY --from=one /y /z\nADD --chown=1 wheels/*.whl wheels \\\n  /w/\n'
        "ADD https://example.org/x /x\nCOPY <<EOF /e\nRUN echo COPY no\n"
    )
    file = read_containerfile(tmp_path)
    assert (file.base, file.mounts) == ("/images/py torch.sqsh", ("/srv/repository",))
    assert file.images() == ("docker.io/a:1",)
    before = {each.name: each.sha256 for each in file.inputs()}
    assert set(before) == {"a b", "wheels", "wheels/*.whl"}
    (tmp_path / "wheels/x.whl").write_text("3")
    after = {each.name: each.sha256 for each in file.inputs()}
    assert {name for name in before if before[name] != after[name]} == {"wheels", "wheels/*.whl"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe", "not a text file"),
        (b"", "no FROM"),
        (b"FROM\n", "no FROM"),
        (b"#" * (2 << 20), "larger"),
    ],
)
def test_a_broken_containerfile_is_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "Containerfile").write_bytes(content)
    with pytest.raises(GipfelError, match=problem):
        read_containerfile(tmp_path)


def test_variables_survive_their_file() -> None:
    variables = {"A": ' "b" ', "C": "'d'", "E": "", "F": "x=y  #z", "G": '"', "H": "a'b\"c"}
    assert parse_environment(environment_file(variables)) == variables
    for value in ("a\nB=c", "x\0y"):
        with pytest.raises(GipfelError):
            environment_file({"A": value})


def test_the_entry_script_quotes() -> None:
    text = entry_script({"entrypoint": ["sh", "-c", "a 'b'"], "workdir": "/x y"})
    assert "cd '/x y'" in text
    assert "exec sh -c 'a '\"'\"'b'\"'\"'' \"$@\"" in text
    assert '\n  exec "$@"\n' in entry_script({"workdir": "/x"})


def test_the_file_system_of_a_path() -> None:
    mounts = (
        "22 1 0:20 / / rw - ext4 /dev/a rw\n"
        "23 1 0:21 / /home rw shared:1 - nfs4 server:/home rw\n"
        "24 1 0:22 / /home/a\\040b rw - tmpfs tmpfs rw\n"
    )
    assert file_system_of(Path("/home/x/.cache"), mounts) == "nfs4"
    assert file_system_of(Path("/home/a b/c"), mounts) == "tmpfs"
    assert file_system_of(Path("/homes"), mounts) == "ext4"


def _container(root: Path) -> Path:
    """A root in which gipfel-hello was installed after the container's start."""
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "etc/apt/sources.list.d").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text(
        "Package: gipfel-hello\nStatus: install ok installed\nVersion: 1:1.2-3~x\n\n"
        "Package: old\nStatus: install ok installed\nVersion: 1\n"
    )
    (root / "var/lib/dpkg/info/gipfel-hello:amd64.list").write_text("")
    (root / "etc/apt/sources.list.d/own.list").write_text("deb [trusted=yes] file:/srv/packages ./\n")
    (root / "etc/apt/sources.list.d/secret.list").write_text("deb https://me:word@host/debian x main\n")
    return root


def test_an_environment_is_saved(tmp_path: Path) -> None:
    root = _container(tmp_path / "root")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "Tiny_Pkg-2.5-py3-none-any.whl").write_bytes(b"wheel")
    git = {"url": "https://host/a.git", "vcs_info": {"vcs": "git", "commit_id": "c" * 40}}
    packages = (
        PythonPackage(name="Tiny.Pkg", version="2.5", changed=2e9),
        PythonPackage(name="old", version="1", changed=1),
        PythonPackage(name="mine", version="1", changed=2e9, url='{"url": "file:///w", "dir_info": {}}'),
        PythonPackage(name="vcs", version="1", changed=2e9, url=json.dumps(git)),
    )
    state = PythonState(packages=packages, managed=True, python="/usr/bin/python3")
    origin = Origin(image="/images/a.sqsh", edf="/home/me/a.toml", started=1.5e9)
    saved = save_environment(
        tmp_path / "saved",
        origin,
        state,
        wheels=[wheels],
        root=root,
        environment={"PIP_INDEX_URL": "https://me:word@host/simple"},
    )
    assert saved.debian == ("gipfel-hello=1:1.2-3~x",)
    text = saved.containerfile.read_text()
    assert "me:word" not in text
    assert "gipfel-hello=1:1.2-3~x" in text.replace("'", "")
    assert "--break-system-packages" in text
    requirements = (tmp_path / "saved/requirements.txt").read_text()
    assert requirements == f"Tiny.Pkg==2.5\nvcs @ git+https://host/a.git@{'c' * 40}\n"
    assert [each.name for each in (tmp_path / "saved/wheels").iterdir()] == ["Tiny_Pkg-2.5-py3-none-any.whl"]
    assert sorted(each.name for each in (tmp_path / "saved/apt").rglob("*.list")) == ["own.list"]
    assert [line.partition(" ")[0].rpartition("/")[2] for line in saved.notes] == [
        "secret.list",
        "mine",
        "PIP_INDEX_URL",
    ]
    file = read_containerfile(tmp_path / "saved")
    assert (file.base, file.edf, file.mounts) == (origin.image, origin.edf, ("/srv/packages",))
    # What it adds is there.
    assert {each.name for each in file.inputs()} == {"apt/", "requirements.txt", "wheels/"}


def test_an_environment_without_changes_is_refused(tmp_path: Path) -> None:
    origin = Origin(image="/images/a.sqsh", started=4e9)
    with pytest.raises(GipfelError, match="Nothing was installed"):
        save_environment(
            tmp_path / "saved", origin, PythonState(), root=_container(tmp_path / "root"), environment={}
        )
    assert not (tmp_path / "saved").exists()
    with pytest.raises(GipfelError, match="not a container"):
        find_origin("", "", {})
    with pytest.raises(GipfelError, match="line break"):
        find_origin("/a\nRUN evil", "", {})
