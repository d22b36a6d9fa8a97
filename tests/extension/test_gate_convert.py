"""Checkpoints become safetensors in a sandbox, and what is hostile does not get out of it."""

import json
import os
import pickle
import struct
import sys
from pathlib import Path
from shutil import which

import numpy as np
import pytest
import torch

from gipfel_cluster.model import GipfelError
from gipfel_extension.gate.models import convert as module
from gipfel_extension.gate.models.convert import convert, sandbox_command

pytestmark = pytest.mark.skipif(which("bwrap") is None, reason="needs bubblewrap")


def _read(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    body = data[8 + length :]
    return {
        name: (each["dtype"], each["shape"], body[slice(*each["data_offsets"])])
        for name, each in header.items()
    }


def test_tensors_are_kept_bit_by_bit_and_the_rest_is_named(tmp_path: Path) -> None:
    weight = torch.randn(3, 4).t()
    content = {
        "model": {"w": weight, "half": torch.ones(2, dtype=torch.bfloat16), "none": torch.empty(0)},
        "shared": [weight, torch.tensor(True)],
        "step": 7,
    }
    torch.save(content, tmp_path / "a.pt")
    made = convert(tmp_path / "a.pt", tmp_path / "a.safetensors", os.environ)
    assert (made.tensors, made.not_tensors, made.examples) == (5, 1, "step")
    found = _read(tmp_path / "a.safetensors")
    dtype, shape, data = found["model.w"]
    assert (dtype, shape) == ("F32", [4, 3])
    assert np.array_equal(np.frombuffer(data, dtype=np.float32).reshape(4, 3), weight.contiguous().numpy())
    assert found["model.half"][:2] == ("BF16", [2])
    assert found["shared.1"] == ("BOOL", [], b"\x01")
    assert found["model.none"] == ("F32", [0], b"")
    np.savez(tmp_path / "n.npz", x=np.arange(3, dtype=np.int16))
    convert(tmp_path / "n.npz", tmp_path / "n.safetensors", os.environ)
    assert _read(tmp_path / "n.safetensors") == {"x": ("I16", [3], b"\x00\x00\x01\x00\x02\x00")}
    with pytest.raises(GipfelError, match="exists"):
        convert(tmp_path / "n.npz", tmp_path / "n.safetensors", os.environ)


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_what_can_not_be_converted_leaves_no_file(tmp_path: Path) -> None:
    torch.save({"x": _Evil(tmp_path / "loaded")}, tmp_path / "evil.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save({"step": 1}, tmp_path / "empty.pt")
    (tmp_path / "pickled.npy").write_bytes(pickle.dumps([1]))
    for name in ("evil.pt", "text.pt", "empty.pt", "pickled.npy", "missing.pt"):
        with pytest.raises(GipfelError):
            convert(tmp_path / name, tmp_path / "out.safetensors", os.environ)
    assert not (tmp_path / "loaded").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"evil.pt", "text.pt", "empty.pt", "pickled.npy"}


def test_the_sandbox_holds_no_network_no_writable_file_and_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("x")
    program = tmp_path / "program.py"
    program.write_text(
        "import os, socket, sys\n"
        "found = [name for _, name in socket.if_nameindex()]\n"
        "for path in sys.argv[2:] + ['/tmp/x', '/dev/shm/x', '/var/tmp/x']:\n"
        "    try:\n"
        "        open(path, 'w')\n"
        "        found.append(path)\n"
        "    except OSError:\n"
        "        pass\n"
        f"found += os.listdir({str(tmp_path / 'home')!r}) + [n for n in os.environ if 'HOME' in n]\n"
        "sys.stderr.write(repr(found))\n"
        "sys.exit(5)\n"
    )
    monkeypatch.setattr(module, "_PROGRAM", program)
    (tmp_path / "m.pt").write_bytes(b"x")
    environment = {**os.environ, "HOME": str(tmp_path / "home")}
    argv = sandbox_command(sys.executable, tmp_path / "m.pt", environment)
    with pytest.raises(GipfelError, match=r"\['lo'\]"):
        module._run((*argv, str(tmp_path / "written")), tmp_path / "part", 1000, tmp_path / "m.pt")


def test_a_program_that_was_taken_over_gives_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    monkeypatch.setattr(module, "_PROGRAM", program)
    torch.save({"x": torch.ones(1)}, tmp_path / "m.pt")
    for body, said in (
        ("os.write(1, bytes(range(200)))", "not valid"),
        ("os.write(1, (2**60).to_bytes(8, 'little') + b'{}')", "not valid"),
        ("os.write(1, (2).to_bytes(8, 'little') + b'[]')", "not valid"),
        ("[os.write(1, bytes(1 << 20)) for _ in range(80)]", "grows beyond"),
    ):
        program.write_text(f"import os\n{body}\n")
        with pytest.raises(GipfelError, match=said):
            convert(tmp_path / "m.pt", tmp_path / "out.safetensors", os.environ)
    assert {path.name for path in tmp_path.iterdir()} == {"m.pt", "program.py"}
