"""The rules for readers of EDFs, one by one, from a file on disk to its resolved value."""

import json
import os

import edf_place
import pytest

from gipfel_cluster.edf import (
    annotation_variables,
    check_edfs,
    load_edf,
    show_edf,
)

place = edf_place.place
ANNOTATED = {"com.hooks.cxi.enabled": "true"}


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


def test_an_unbraced_variable_is_kept_with_a_warning(place):
    result = place.resolve('image = "ubuntu"\n[env]\nA = "$HOME"')
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
    (error,) = place.errors('image = "ubuntu"\nmounts = ["/data"]', "sarus")
    assert error.code == "sarus-one-field"


def test_the_default_entrypoint_of_each_dialect(place):
    assert [place.resolve('image = "ubuntu"', each).edf.entrypoint for each in ("ce", "sarus", "pyxis")] == [
        False,
        True,
        False,
    ]
    assert not place.resolve('image = "ubuntu"\nentrypoint = false', "sarus").edf.entrypoint


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
