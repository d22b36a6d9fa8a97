"""The zoo of model files: each verdict and limit; nothing in them is executed."""

import io
import os
import pickle
import random
import struct
import time
import zipfile
import zlib
from pathlib import Path

import model_zoo as zoo
import pytest

from gipfel_extension.cli import main
from gipfel_extension.gate.models.scan_stream import scan_file
from gipfel_extension.gate.models.streams import Budget
from gipfel_extension.gate.models.tree import TreeScan

ALL = {**zoo.BENIGN, **zoo.HOSTILE}
CANARY = Path("/tmp/gipfel-gate-canary")


def verdict_of(content: bytes, name: str, **limits) -> str:
    return judgement_of(content, name, **limits).verdict


def judgement_of(content: bytes, name: str, **limits):
    return scan_file(io.BufferedReader(io.BytesIO(content)), name, Budget(**limits))


def test_the_zoo_has_forty_files_and_more():
    assert len(zoo.BENIGN) >= 10
    assert len(zoo.HOSTILE) >= 36


@pytest.mark.parametrize("name", ALL)
def test_each_file_of_the_zoo_has_its_verdict(name, tmp_path):
    content, verdict = ALL[name]
    zoo.write(tmp_path, {name: (content, verdict)})
    scan = TreeScan()
    items = list(scan.items(tmp_path))
    if verdict == "other":
        assert (items, scan.other_files) == ([], 1)
    else:
        assert [(item.path, item.verdict) for item in items] == [(str(tmp_path / name), verdict)], items
        assert verdict == "plain" or items[0].findings[0].fix
    assert not CANARY.exists()


def test_a_payload_of_the_zoo_is_real():
    # A zoo of harmless files would prove nothing: this one does call what it names.
    called = []
    unpickler = type("Recorder", (pickle.Unpickler,), {"find_class": lambda *given: called.append})
    unpickler(io.BytesIO(zoo.SYSTEM)).load()
    assert called == [zoo.CANARY]


@pytest.mark.parametrize(
    "name", [name for name, (_, verdict) in zoo.HOSTILE.items() if verdict == "malicious"]
)
def test_a_hostile_file_is_found_in_one_more_wrapper(name):
    content = zoo.HOSTILE[name][0]
    assert verdict_of(zoo.zipped({name: content}, zipfile.ZIP_DEFLATED), "outer.zip") == "malicious"


def test_the_names_are_in_the_finding():
    (finding,) = judgement_of(zoo.call("some_library.part", "run"), "x.pkl").findings
    assert (finding.rule, finding.severity) == ("pickle-needs-code", "high")
    assert "some_library.part.run" in finding.message


def test_real_torch_files_are_plain(tmp_path):
    torch = pytest.importorskip("torch")
    state = torch.nn.Linear(4, 4).state_dict()
    torch.save(state, tmp_path / "new.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(4, 4), tmp_path / "whole.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(state["weight"]))
    verdicts = {Path(item.path).name: item.verdict for item in TreeScan().items(tmp_path)}
    assert verdicts == {"new.pt": "plain", "old.pt": "plain", "plain.pkl": "plain", "whole.pt": "needs code"}


def test_a_file_that_unpacks_to_too_much_is_not_understood():
    bomb = zlib.compress(bytes(50 << 20), 9)
    assert verdict_of(bomb, "bomb.joblib", decompressed=10 << 20) == "not understood"
    nested = zoo.SYSTEM
    for _ in range(12):
        nested = zoo.zipped({"a.zip": nested})
    assert verdict_of(nested, "deep.zip") == "not understood"
    assert (
        verdict_of(zoo.zipped({str(n): b"x" for n in range(50)}), "many.zip", members=40) == "not understood"
    )


def test_a_pickle_that_lies_about_sizes_costs_nothing():
    claims = b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x"
    memo = b"\x80\x04Nr\xff\xff\xff\xff."
    frames = b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N."
    began = time.process_time()
    assert verdict_of(claims, "a.pkl") == "not understood"
    assert verdict_of(memo, "b.pkl") == "plain"
    assert verdict_of(frames, "c.pkl") == "plain"
    assert time.process_time() - began < 5


def test_broken_files_never_raise_nor_become_plain_by_a_cut():
    draw = random.Random(7)
    for name, (content, verdict) in ALL.items():
        for _ in range(12):
            raw = bytearray(content)
            for _ in range(draw.randrange(1, 6)):
                raw[draw.randrange(len(raw))] = draw.randrange(256)
            judgement_of(bytes(raw), name)
        if verdict == "malicious" and name.endswith(".pkl") and name != "polyglot.pkl":
            # Code before the cut has run by then.
            assert verdict_of(content[: content.rfind(b"R") + 1] or content, name) in (
                "malicious",
                "not understood",
            )
    assert not CANARY.exists()


def test_a_name_writes_no_lines_of_its_own(tmp_path, capsys):
    (tmp_path / "a\n0 files judged, 0 of them plain.\x1b[2J\r.pkl").write_bytes(zoo.SYSTEM)
    assert main(["scan", "--no-cache", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].startswith(f"{tmp_path}/a 0 files judged")
    assert lines[0].endswith(".pkl: malicious")
    assert [line for line in lines if " judged, " in line][1:] == [lines[-2]]
    assert not any("\r" in line or "\x1b" in line for line in lines)


def test_links_and_pipes_are_not_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe.pkl")
    (tmp_path / "link.pkl").symlink_to("/etc/passwd")
    assert {item.verdict for item in TreeScan().items(tmp_path)} == {"not understood"}
