"""The rules that every reader of EDFs must follow, one by one, from a file on disk to its resolved value."""

import json
import os
import subprocess
import sys

import pytest

from gipfel_cluster.edf import (
    EdfError,
    annotation_variables,
    check_edf,
    check_edfs,
    load_edf,
    resolve,
    show_edf,
)
from gipfel_cluster.edf.toml_text import edf_toml
from gipfel_cluster.engines import ContainerRequest, engine_for, engine_invocation, engine_names
from gipfel_cluster.model import GipfelError

ANNOTATED = {"com.hooks.cxi.enabled": "true"}


class Place:
    """A folder with EDFs, which is also the search path and the caller's folder."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {"HOME": str(folder), "EDF_PATH": str(folder)}

    def write(self, text, name="x"):
        path = self.folder / f"{name}.toml"
        path.write_bytes(text.encode())
        return str(path)

    def resolve(self, text, dialect="ce", **variables):
        self.write(text)
        return resolve("x", environment=self.environment | variables, directory=self.folder, dialect=dialect)

    def load(self, text, **variables):
        result = self.resolve(text, **variables)
        assert result.edf is not None, result.diagnostics
        return result.edf

    def errors(self, text, dialect="ce", **variables):
        result = self.resolve(text, dialect, **variables)
        assert result.edf is None
        return [each for each in result.diagnostics if each.severity == "error"]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '[annotations.com.hooks.cxi]\nenabled = "true"\n',
        '[annotations]\ncom.hooks.cxi.enabled = "true"\n',
        '[annotations]\n"com.hooks.cxi.enabled" = "true"\n',
        'annotations.com.hooks.cxi.enabled = "true"\n',
        '[annotations."com.hooks"]\n"cxi.enabled" = "true"\n',
        "annotations = { com = { hooks = { cxi = { enabled = 'true' } } } }\r\n",
    ],
)
def test_annotations_are_the_same_from_every_form(place, text):
    assert place.load(text).annotations == ANNOTATED


def test_annotations_reach_hooks_by_exact_names():
    assert annotation_variables(
        {"com.hooks.dcgm.enabled": "true", "com.hooks.aws_ofi_nccl.variant": "x"}
    ) == {
        "OCI_ANNOTATION_com__hooks__dcgm__enabled": "true",
        "OCI_ANNOTATION_com__hooks__aws_ofi_nccl__variant": "x",
    }


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("\nimage = 3\n", 2, "image"),
        ('image = "x\n', 1, "image"),
        ("[env]\nA = '1'\n\n[env]\n", 4, "env"),
        ("mounts = [...]\n", 1, "mounts"),
        ('mounts = [\n  "/a",\n  "/b\n]\n', 3, "mounts[1]"),
        ('[env]\nA = "1"\nA = "2"\n', 3, "env.A"),
        ('[annotations]\n"com.x".y = z\n', 2, "annotations.com.x.y"),
        ("[env\nA = '1'\n", 1, "env"),
        ("[env]\nimage\n", 2, "env.image"),
        ('mounts = ["/a"\n', 1, "mounts"),
        ('image = """\nabc\n', 2, "image"),
        ("= 3\n", 1, ""),
        ("[env]\n\n'A\\B' = 'x'\n", 3, "env.A\\B"),
        ('[env]\nA = """\\\nB = 1"""\nB = 1\n', 4, "env.B"),
        ('mounts = [\n  "/a", # "/b:c"\n  "/b:c",\n]\n', 3, "mounts[1]"),
        ("[annotations.com.hooks]\ncxi.enabled = true\n", 2, "annotations.com.hooks.cxi.enabled"),
        ("env = { A = 'x', B = 2 }\n", 1, "env.B"),
        ('[env]\r\n"B" = 2\r\n', 2, "env.B"),
    ],
)
def test_what_is_invalid_is_named_by_file_line_and_key(place, text, line, key):
    (error,) = place.errors(text)
    assert (error.file, error.line, error.key) == (str(place.folder / "x.toml"), line, key)
    assert error.message
    assert error.fix


@pytest.mark.parametrize("name", ["x", "x.toml", "./x.toml", "sub/x", "{folder}/x.toml", "~/x.toml"])
def test_every_way_to_name_an_edf(place, name):
    (place.folder / "sub").mkdir()
    place.write("", "sub/x")
    place.write("")
    wanted = place.folder / ("sub/x.toml" if "sub" in name else "x.toml")
    name = name.format(folder=place.folder)
    found = load_edf(name, environment=place.environment, directory=place.folder)
    assert found.path == str(wanted)


def test_a_base_is_named_in_every_way_too(place):
    place.write('[env]\nA = "1"\n', "a")
    for name in ("a", "a.toml", "./a.toml", f"{place.folder}/a.toml", "${NAME}"):
        assert place.load(f'base_environment = "{name}"', NAME="a").env == {"A": "1"}


def test_an_eleventh_level_shows_its_chain(place):
    place.write("", "e0")
    for level in range(1, 12):
        place.write(f'base_environment = "e{level - 1}"', f"e{level}")
    assert place.load('base_environment = "e9"').sources[0].endswith("/e0.toml")
    (error,) = place.errors('base_environment = "e10"')
    assert error.code == "levels"
    chain = error.message.split(" -> ")
    assert len(chain) == 12
    assert chain[-1].rstrip(".").endswith("/e0.toml")


def test_a_cycle_through_a_link_is_one(place):
    (place.folder / "link.toml").symlink_to("x.toml")
    (error,) = place.errors('base_environment = "link"')
    assert error.code == "cycle"


def test_a_base_listed_twice_counts_once(place):
    place.write('mounts = ["/a"]\ndevices = ["d"]\n', "a")
    edf = place.load('base_environment = ["a", "a"]')
    assert len(edf.mounts) == len(edf.devices) == 1


def test_every_value_has_its_own_origin(place):
    a = place.write('mounts = ["/a", "/m"]\ndevices = ["d"]\nworkdir = "/a"\n', "a")
    b = place.write('mounts = ["/m", "/b"]\n[env]\nX = "b"\n', "b")
    result = place.resolve('base_environment = ["a", "b"]\nworkdir = "/x"\nmounts = ["/x"]\n')
    x = str(place.folder / "x.toml")
    assert result.origins == {
        "workdir": x, "mounts[0]": a, "mounts[1]": a, "mounts[2]": b, "mounts[3]": x,
        "devices[0]": a, "env.X": b,
    }  # fmt: skip
    shown = show_edf(result, origin=True)
    assert f"mounts = /b:/b    # {b}" in shown
    assert f"workdir = /x    # {x}" in shown
    assert "image =     # default" in shown


@pytest.mark.parametrize(
    "key",
    ["image", "workdir", "mounts", "devices", "base_environment", "env.A", "annotations.a.b"],
)
def test_variables_are_expanded_wherever_a_string_stands(place, key):
    place.write("", "base")
    written = {"image": "${V}", "base_environment": "${NAME}", "workdir": "${V}"}.get(key, "${V}")
    text = f'["{written}"]' if key in {"mounts", "devices"} else f'"{written}"'
    (error,) = place.errors(f"{key} = {text}")
    assert error.code == "unknown-variable"
    assert error.key.startswith(key)
    assert ("NAME" if key == "base_environment" else "V") in error.message
    shown = json.dumps(place.load(f"{key} = {text}", V="/value", NAME="base").content)
    assert "${" not in shown


def test_expansion(place):
    text = """[env]
A = "${SET}"
B = "${UNSET:-}"
C = "${UNSET:-default:x}"
D = "$${SET}"
E = "$$SET"
F = ""
G = "${SET}${SET}"
"""
    assert place.load(text, SET="1").env == {
        "A": "1", "B": "", "C": "default:x", "D": "${SET}", "E": "$$SET", "F": "", "G": "11",
    }  # fmt: skip


def test_unicode_and_line_ends_of_another_system(place):
    text = '[env]\r\nA = "é 漢 \U0001f9ca"\r\nB = "${NAME}"\r\n[annotations]\r\nc.d = "ü"\r\n'
    edf = place.load(text, NAME="ß")
    assert edf.env == {"A": "é 漢 \U0001f9ca", "B": "ß"}
    assert edf.annotations == {"c.d": "ü"}


@pytest.mark.parametrize(
    ("text", "code"),
    [("${A", "unclosed-variable"), ("${}", "bad-variable"), ("${A:-${B}}", "nested-variable")],
)
def test_a_form_that_is_none_is_diagnosed(place, text, code):
    assert [each.code for each in place.errors(f'[env]\nX = "{text}"', A="1", B="2")] == [code]


def test_an_unbraced_variable_stays_and_is_told(place):
    result = place.resolve('[env]\nA = "$HOME"')
    assert result.edf.env == {"A": "$HOME"}
    assert [(each.code, each.severity) for each in result.diagnostics] == [("unbraced-variable", "warning")]


def test_env_does_not_see_env_of_a_base_either(place):
    place.write('[env]\nA = "1"\n', "a")
    assert [each.key for each in place.errors('base_environment = "a"\n[env]\nB = "${A}"\n')] == ["env.B"]


def test_a_mount_is_split_when_expansion_is_understood(place):
    edf = place.load('mounts = ["${D:-/x}:/y", "${P}:/z:ro+private", "/s:/t:sqsh"]', P="/a:b")
    assert [(each.source, each.destination, each.flags) for each in edf.mounts] == [
        ("/x", "/y", ()),
        ("/a:b", "/z", ("ro", "private")),
        ("/s", "/t", ("sqsh",)),
    ]
    assert [each.code for each in place.errors('mounts = ["/a:/b:sqsh+ro"]')] == ["mount-flags"]


def test_one_field_is_both_sides_and_nothing_for_sarus(place):
    (mount,) = place.load('mounts = ["/data"]').mounts
    assert (mount.source, mount.destination) == ("/data", "/data")
    (error,) = place.errors('mounts = ["/data"]', "sarus")
    assert error.code == "sarus-one-field"


def test_an_entrypoint_that_nobody_mentions(place):
    assert [place.resolve("", each).edf.entrypoint for each in ("ce", "sarus", "pyxis")] == [
        False,
        True,
        False,
    ]
    assert not place.resolve("entrypoint = false", "sarus").edf.entrypoint


@pytest.mark.parametrize("value", ["true", "1", "1.5", "[]", "1979-05-27"])
def test_a_value_of_an_annotation_or_variable_that_is_no_string(place, value):
    for key in ("annotations.com.hooks.cxi.enabled", "env.A"):
        (error,) = place.errors(f"{key} = {value}")
        assert (error.code, error.key) == ("type", key)


@pytest.mark.parametrize("escape", ["\\n", "\\r", "\\u0000"])
@pytest.mark.parametrize("key", ["image", "workdir", "env.A", "annotations.a", "mounts", "devices"])
def test_a_line_break_or_nul_is_refused(place, key, escape):
    text = f'["/a{escape}b"]' if key in {"mounts", "devices"} else f'"/a{escape}b"'
    assert [each.code for each in place.errors(f"{key} = {text}")] == ["line-break"]


def test_bytes_that_are_no_text_are_refused(place):
    assert [each.code for each in place.errors('[env]\nA = "${V}"', V="\udcff")] == ["no-text"]
    path = os.fsencode(place.folder) + b"/\xff.toml"
    with open(path, "wb"):
        pass
    checked = check_edfs([str(place.folder)], environment={}, directory=place.folder)
    (odd,) = (each for each in checked if "x.toml" not in each.file)
    assert odd.edf is None
    assert json.dumps([str(each) for each in odd.diagnostics]).isprintable()


def test_the_image_is_asked_where_it_can_be_read(place):
    (place.folder / "image/etc").mkdir(parents=True)
    (place.folder / "image/etc/environment").write_text("ONLY=image\nBOTH=image\n")
    text = 'image = "./image"\n[env]\nA = "${ONLY}"\nB = "${BOTH}"\n'
    result = place.resolve(text, BOTH="host")
    assert result.edf.env == {"A": "image", "B": "image"}
    (warning,) = result.diagnostics
    assert (warning.severity, warning.code, warning.key) == ("warning", "image-variable", "env.A")
    assert "ONLY" in warning.message
    assert "at start" in warning.message


def test_an_image_that_can_not_be_read_leaves_an_error_unless_the_caller_has_the_variable(place):
    text = 'image = "ubuntu:24.04"\n[env]\nA = "${V}"\n'
    (error,) = place.errors(text)
    assert "can't be read here" in error.message
    assert place.load(text, V="host").env == {"A": "host"}


def test_what_is_not_here_is_told_where_it_is_asked_for(place):
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
        if not engine.missing():
            raise
        pytest.skip(str(error))
    carried = [*strings([list(invocation.argv), invocation.environment])]
    together = "\0".join(carried)
    assert "\0".join(("program", *AWKWARD)) in together
    if name == "ce":
        # The engine reads the file itself, which nobody has touched.
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


def test_unknown_keys_are_told_with_the_nearest(place):
    result = place.resolve('Image = "/x"\nmount = []\nenvironment = {}\nzzz = 1\n')
    assert result.edf
    fixes = {each.key: each.fix for each in result.diagnostics}
    assert "image" in fixes["Image"]
    assert "mounts" in fixes["mount"]
    assert "base_environment" in fixes["zzz"]
    assert {each.code for each in result.diagnostics} == {"unknown-key"}


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
    path = place.write('mounts = ["/a"]\n')
    assert run(place, "check", "x").returncode == 0
    refused = run(place, "check", "--dialect", "sarus", "--json", "x")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["diagnostics"][0]["code"] == "sarus-one-field"
    assert run(place, "check", "--dialect", "docker", "x").returncode == 2
    assert json.loads(run(place, "show", "--origin", "--json", "x").stdout)["origins"] == {"mounts[0]": path}
    assert json.loads(run(place, "schema").stdout)["properties"]["mounts"]
