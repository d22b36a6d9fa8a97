"""Description of a runtime in its directory, and the errors for invalid ones."""

import json
import os
import platform
import sys
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runtime import Runtime


def describe(folder: Path, **changes: object) -> Path:
    content = {
        "prefix": "/opt/gipfel",
        "version": "1.2.3+abc",
        "arch": platform.machine(),
        "key": "abc",
        "distributions": {"gipfel": "1.2.3"},
    }
    (folder / "runtime.json").write_text(json.dumps(content | changes))
    return folder


def test_load_returns_the_interpreters_path_in_a_container(tmp_path: Path) -> None:
    runtime = Runtime.load(describe(tmp_path))
    assert runtime.root == str(tmp_path)
    assert runtime.prefix == "/opt/gipfel"
    assert runtime.python == "/opt/gipfel/bin/python3"
    assert runtime.version == "1.2.3+abc"


def test_its_mount_is_read_only_at_its_prefix(tmp_path: Path) -> None:
    mount = Runtime.load(describe(tmp_path)).mount
    assert (mount.source, mount.destination, mount.flags) == (str(tmp_path), "/opt/gipfel", ("ro",))


def test_a_folder_without_a_runtime_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(GipfelError, match=r"There is no runtime in .*`gipfel runtime build /"):
        Runtime.load(tmp_path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GipfelError, match=f"is for sparc64, this machine is {platform.machine()}"):
        Runtime.load(describe(tmp_path, arch="sparc64"))


@pytest.mark.parametrize("change", [{"prefix": 3}, {"surprise": True}, {"prefix": "/a\nb"}])
def test_an_invalid_description_is_refused_in_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(GipfelError, match="not valid for this version of Gipfel") as caught:
        Runtime.load(describe(tmp_path, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["deep", "endless", "pipe", "prefix", "relative"])
def test_a_hostile_description_is_refused_without_blocking(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "runtime.json"
    match kind:
        case "deep":
            path.write_text("[" * 1_000_000)
        case "endless":
            path.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "prefix":
            describe(tmp_path, prefix="/opt/../etc")
        case "relative":
            describe(tmp_path, prefix="opt")
    with pytest.raises(GipfelError, match=r"is not valid for this version|not a regular file|is larger than"):
        Runtime.load(tmp_path)


def test_from_current_interpreter_describes_this_interpreter() -> None:
    here = Runtime.from_current_interpreter()
    assert (here.python, here.root, here.prefix) == (sys.executable, sys.prefix, sys.prefix)
