"""The limits of an EDF: errors above them, and no loss below them."""

import sys
from pathlib import Path

import edf_place
import pytest

from gipfel_cluster.edf import find_edf, resolve
from gipfel_cluster.edf.document import LineIndex
from gipfel_cluster.edf.model import MAX_DIAGNOSTICS, MAX_TOTAL_CHARACTERS, MAX_VALUE_CHARACTERS, MAX_VALUES
from gipfel_cluster.engines import ContainerRequest, engine_for
from gipfel_cluster.hooks import engine_invocation
from gipfel_cluster.model import GipfelError

place = edf_place.place


def codes(resolution):
    return [each.code for each in resolution.diagnostics if each.severity == "error"]


def test_a_base_that_is_listed_again_wins_again_and_is_read_once(place):
    place.write('workdir = "/a"\nmounts = ["/a"]\nnonsense = 1\n[env]\nX = "a"\nY = "a"\n', "a")
    place.write('workdir = "/b"\nmounts = ["/b"]\n[env]\nY = "b"\nX = "b"\n', "b")
    result = place.resolve('base_environment = ["a", "b", "a"]\n[env]\nZ = "x"\n')
    assert result.edf.workdir == "/a"
    assert result.edf.env == {"X": "a", "Y": "a", "Z": "x"}
    assert list(result.edf.env) == ["X", "Y", "Z"]
    assert [each.source for each in result.edf.mounts] == ["/a", "/b"]
    assert [Path(each).stem for each in result.edf.sources] == ["a", "b", "x"]
    assert [each.code for each in result.diagnostics] == ["unknown-key", "no-image"]


def test_as_many_values_as_are_allowed_are_read(place):
    lines = "".join(f'A{number} = "{number}"\n' for number in range(MAX_VALUES))
    assert len(place.load(f"[env]\n{lines}").env) == MAX_VALUES
    assert codes(place.resolve(f"[env]\n{lines}B = '1'\n")) == ["values"]
    place.write(f"[env]\n{lines}", "base")
    result = place.resolve('base_environment = "base"\n')
    assert codes(result) == ["too-large"]
    assert result.diagnostics[0].file.endswith("base.toml")


def test_a_value_as_long_as_is_allowed_is_read(place):
    assert len(place.load(f'[env]\nA = "{"x" * MAX_VALUE_CHARACTERS}"').env["A"]) == MAX_VALUE_CHARACTERS
    assert codes(place.resolve(f'[env]\nA = "{"x" * MAX_VALUE_CHARACTERS}x"')) == ["too-long"]
    assert codes(place.resolve('[env]\nA = "${L}${L}"', L="x" * (MAX_VALUE_CHARACTERS // 2 + 1))) == [
        "too-long"
    ]
    halves = '[env]\nA = "${L}"\nB = "${L}"\nC = "${L}"\n'
    assert codes(place.resolve(halves, L="x" * (MAX_TOTAL_CHARACTERS // 2 - 10))) == ["too-large"]
    assert codes(place.resolve(halves, L="é" * (MAX_TOTAL_CHARACTERS // 12 - 10))) == ["too-large"]
    assert place.load(halves, L="x" * (MAX_TOTAL_CHARACTERS // 3 - 10))


def test_an_error_is_not_lost_behind_warnings(place):
    warnings = "".join(f"key{number} = 1\n" for number in range(3 * MAX_DIAGNOSTICS))
    result = place.resolve(f"{warnings}image = 3\n")
    assert result.edf is None
    assert len(result.diagnostics) == MAX_DIAGNOSTICS + 1
    assert codes(result) == ["type"]
    assert "201 more diagnostics" in result.diagnostics[-1].message


def test_one_cause_of_one_value_is_one_diagnostic(place):
    for text in ('mounts = ["${:${:${"]', '[env]\nA = "${X} ${Y} ${X}"', 'workdir = "a${X}"'):
        found = [each for each in place.resolve(text).diagnostics if each.severity != "note"]
        assert len(found) == 1, text
    (warning, _note) = place.resolve('[env]\nA = "$X $X $X"').diagnostics
    assert warning.code == "unbraced-variable"


def test_a_message_quotes_no_more_than_can_be_read(place):
    long = "x" * 60_000
    for text in (
        f'mounts = ["{long}"]',
        f'workdir = "{long}"',
        f'image = "{long}.sqsh"',
        f'[env]\nA = "${long}"',
    ):
        for each in place.resolve(text).diagnostics:
            assert len(str(each)) < 1500, text


def test_lines_of_values_that_are_deep_take_no_memory():
    deep = LineIndex("mounts = " + "[" * 100 + '"",' * 1000 + "]" * 100)
    assert len(deep.last_path()) <= 50


def test_broken_links_and_directories_hide_no_edf(place):
    first, second = place.folder / "first", place.folder / "second"
    for folder in (first, second):
        folder.mkdir()
    environment = {"EDF_PATH": f"{first}:{second}"}
    (first / "a.toml").symlink_to("nowhere")
    (first / "b.toml").mkdir()
    for name in ("a", "b"):
        (second / f"{name}.toml").write_text("")
        found = find_edf(name, environment=environment, directory=place.folder)
        assert found == second / f"{name}.toml"
        (second / f"{name}.toml").unlink()
        assert codes(resolve(name, environment=environment, directory=place.folder)) == ["unreadable"]


def test_sarus_counts_the_edf_itself_as_a_level(place):
    place.write('image = "ubuntu"', "e0")
    for level in range(1, 11):
        place.write(f'image = "ubuntu"\nbase_environment = "e{level - 1}"', f"e{level}")
    assert place.resolve('image = "ubuntu"\nbase_environment = "e8"', "sarus").edf
    assert codes(place.resolve('image = "ubuntu"\nbase_environment = "e9"', "sarus")) == ["levels"]
    assert place.resolve('image = "ubuntu"\nbase_environment = "e9"', "ce").edf


@pytest.mark.parametrize("engine", ["apptainer", "podman", "bubblewrap"])
def test_a_mount_without_a_source_is_no_file_of_that_name(place, engine):
    edf = place.load('image = "ubuntu"\nmounts = ["tmpfs:/x"]')
    request = ContainerRequest(edf=edf, command=("true",), scratch=str(place.folder))
    with pytest.raises(GipfelError, match="can't make the mount tmpfs:/x"):
        engine_invocation(request, engine_for(edf, engine), python=sys.executable)
