"""Updating a mirror of OSV: whole archives or none, and never from a partially written one."""

import http.server
import json
import sys
import threading
import zipfile
from functools import partial
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli import main
from gipfel_extension.gate.advisories.update import update_mirror

sys.path.insert(0, str(Path(__file__).parent))

import package_images as images

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
