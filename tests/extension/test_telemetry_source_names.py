"""Sources by name: built-in ones, with arguments, and another package's."""

import tomllib
from pathlib import Path

import pytest

from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import SourceRequest, open_source, source_names


def test_synthetic_gpus_in_any_number() -> None:
    assert len(open_source("synthetic:training:16").devices) == 16
    for odd in ("0", "-1", "x", "", "1025", "٣"):
        with pytest.raises(SourceError, match="not a valid number"):
            open_source(f"synthetic:idle:{odd}")


def test_every_source_with_an_argument_is_an_entry_point_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert sorted(project["entry-points"]["gipfel.sources"]) == sorted(source_names()[5:9])
    for name in source_names()[:5]:
        with pytest.raises(SourceError, match="takes no argument"):
            open_source(f"{name}:what")


def test_a_source_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.py").write_text(
        "from gipfel_extension.telemetry.sources import AbsentSource\n"
        "def opened(argument, request): return AbsentSource(f'{argument} every {request.interval:g} s')\n"
    )
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[gipfel.sources]\nother = other:opened\nbroken = other:missing\nnvml = other:opened\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert open_source("other:x:y", SourceRequest(2.0)).name == "x:y every 2 s"
    # Built-in names can't be replaced by another package.
    assert source_names().count("nvml") == 1
    with pytest.raises(SourceError, match="can't be imported"):
        open_source("broken")
