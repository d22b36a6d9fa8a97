"""Use of an EDF: the image, the rendering by every engine, and the argv of the program."""

import json
import os
import subprocess
import sys

import edf_place
import pytest

from gipfel_cluster.edf import (
    EdfError,
    check_edf,
    load_edf,
)
from gipfel_cluster.edf.draft import edf_toml
from gipfel_cluster.engines import ContainerRequest, engine_for, engine_names
from gipfel_cluster.hooks import engine_invocation
from gipfel_cluster.model import GipfelError

place = edf_place.place


def test_the_image_is_asked_where_it_can_be_read(place):
    (place.folder / "image/etc").mkdir(parents=True)
    (place.folder / "image/etc/environment").write_text("ONLY=image\nBOTH=image\n")
    text = 'image = "./image"\n[env]\nA = "${ONLY}"\nB = "${BOTH}"\n'
    result = place.resolve(text, BOTH="host")
    assert result.edf.env == {"A": "image", "B": "image"}
    (warning,) = result.diagnostics
    assert (warning.severity, warning.code, warning.key) == ("warning", "image-variable", "env.A")
    assert "ONLY" in warning.message
    assert "when the container starts" in warning.message


def test_an_image_that_can_not_be_read_leaves_an_error_unless_the_caller_has_the_variable(place):
    text = 'image = "ubuntu:24.04"\n[env]\nA = "${V}"\n'
    (error,) = place.errors(text)
    assert "can't be read here" in error.message
    assert place.load(text, V="host").env == {"A": "host"}


def test_local_checks_report_the_file_and_line_of_each_value(place):
    base = place.write('\nimage = "/nowhere/x.sqsh"\n', "base")
    path = place.write('base_environment = "base"\nmounts = [\n  "/",\n  "/nowhere",\n]\n')
    checked = check_edf("x", environment=place.environment, directory=place.folder, here=True)
    assert [(each.file, each.line, each.key) for each in checked.diagnostics if each.severity == "error"] == [
        (base, 2, "image"),
        (path, 4, "mounts[1]"),
    ]


AWKWARD = (
    *(
        "a  b ",
        "$HOME",
        "${HOME}",
        "$${HOME}",
        "$(id)`id`",
        '"\'"',
        "\\n\\\\",
        "é ü 漢 \U0001f9ca",
        "a\tb",
        "-x",
    ),
    *("--", "a=b", "a,b", "*", "~", "# no", "%s", "!", "&;|<>", "{'a': 1}", "\x7f", "\u2028"),
)


def strings(value):
    """Every string of an invocation in its order, variables as NAME=VALUE, and those inside of JSON."""
    if isinstance(value, str):
        yield value
        if value.startswith(("{", "[")) and value not in AWKWARD:
            yield from strings(json.loads(value))
    elif isinstance(value, dict):
        for name, each in value.items():
            if isinstance(each, str):
                yield f"{name}={each}"
            yield from strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings(each)


@pytest.mark.parametrize("name", engine_names())
def test_rendering_keeps_values_to_the_byte(place, name):
    folder = place.folder / "a b $HOME ${X} 'q' \"d\" é\\"
    (folder / "image/bin").mkdir(parents=True)
    (folder / "image/bin/sh").touch()
    env = {f"V{number}": value for number, value in enumerate(AWKWARD)}
    values = {
        "workdir": str(folder),
        "mounts": [f"{folder}:{folder}/in"],
        "env": env,
        "annotations": {"mine": dict(env)},
    }
    if name != "host":
        values["image"] = str(folder / "image")
    text = edf_toml(json.loads(json.dumps(values).replace("${", "$${")))
    edf = place.load(text)
    assert (edf.env, edf.workdir, edf.mounts[0].source) == (env, str(folder), str(folder))
    scratch = place.folder / "scratch"
    scratch.mkdir()
    request = ContainerRequest(
        edf=edf,
        command=("program", *AWKWARD),
        environment={"PATH": os.environ["PATH"], "OFFERED": AWKWARD[0]},
        scratch=str(scratch),
    )
    engine = engine_for(edf, "" if name == "host" else name)
    try:
        invocation = engine_invocation(request, engine, python=sys.executable)
    except GipfelError as error:
        if not engine.unavailable_reason():
            raise
        pytest.skip(str(error))
    carried = [*strings([list(invocation.argv), invocation.environment])]
    together = "\0".join(carried)
    assert "\0".join(("program", *AWKWARD)) in together
    if name == "ce":
        # The engine reads the file itself, which is unchanged.
        assert f"--environment={edf.path}" in invocation.argv
        assert (place.folder / "x.toml").read_text() == text
        return
    for variable, value in env.items():
        assert any(
            f"{each}{variable}={value}" in carried for each in ("", "APPTAINERENV_", "SINGULARITYENV_")
        )
    # Apptainer's mounts are lines of CSV, where a quote is two.
    for path in (str(folder), *([f"{folder}/in"] if name != "host" else [])):
        assert path in together or path.replace('"', '""') in together


def test_unknown_keys_are_reported_with_the_nearest(place):
    result = place.resolve('Image = "/x"\nmount = []\nenvironment = {}\nzzz = 1\nvolumes = []\n')
    assert result.edf
    fixes = {each.key: each.fix for each in result.diagnostics}
    assert "image" in fixes["Image"]
    assert "mounts" in fixes["mount"]
    assert "base_environment" in fixes["zzz"]
    assert fixes["environment"] == "Did you mean env?"
    assert fixes["volumes"] == "Did you mean mounts?"
    assert {each.code for each in result.diagnostics} == {"unknown-key", "no-image"}


def test_an_error_names_all_that_is_wrong(place):
    place.write('image = 3\nworkdir = "${NONE}"\n[env]\nA = 1\n')
    with pytest.raises(EdfError, match="and 2 more") as raised:
        load_edf("x", environment=place.environment, directory=place.folder)
    assert [each.key for each in raised.value.diagnostics] == ["image", "env.A", "workdir"]


def run(place, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "gipfel_cluster.edf", *arguments],
        cwd=place.folder,
        env=place.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_program_knows_dialects_origins_and_the_schema(place):
    path = place.write('image = "ubuntu"\nmounts = ["/a"]\n')
    assert run(place, "check", "x").returncode == 0
    refused = run(place, "check", "--dialect", "sarus", "--json", "x")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["diagnostics"][0]["code"] == "sarus-one-field"
    assert run(place, "check", "--dialect", "docker", "x").returncode == 2
    assert json.loads(run(place, "show", "--origin", "--json", "x").stdout)["origins"] == {
        "image": path,
        "mounts[0]": path,
    }
    assert json.loads(run(place, "schema").stdout)["properties"]["mounts"]
