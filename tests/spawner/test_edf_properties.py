"""Properties of the EDF parser for any text: it does not crash, and no byte of a value is lost."""

import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gipfel_cluster.edf.document import LineIndex
from gipfel_cluster.edf.draft import edf_toml
from gipfel_cluster.edf.expand import ExpansionError, expand, split_fields
from gipfel_cluster.edf.model import EdfFile
from gipfel_cluster.edf.parse import parse
from gipfel_cluster.edf.resolve import resolve_text

ANY = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
LINE = st.text(alphabet=st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]))
#: Texts in which what matters to the parsers is frequent.
PIECES = st.lists(
    st.sampled_from(["${", "$${", "}", "$", "A", "B:-", ":", "/x", "é", " ", "${A}", "${NONE:-y}"]) | LINE
).map("".join)
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
JSON = st.recursive(
    LINE | st.booleans() | st.integers(-9, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3),
    max_leaves=5,
)


def quoted(text: str) -> str:
    """A TOML basic string."""
    inside = "".join(f"\\u{ord(each):04x}" if each in '"\\\x7f' or ord(each) < 32 else each for each in text)
    return f'"{inside}"'


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return str(value)


@given(PIECES, st.dictionaries(st.sampled_from(["A", "B", "NONE"]), LINE))
def test_expansion_gives_a_text_or_says_why_not(text, variables):
    try:
        value, code = expand(text, variables.get), ""
    except ExpansionError as error:
        value, code = "", error.code
    assert isinstance(value, str)
    assert code in {"", "unknown-variable", "unclosed-variable", "bad-variable", "nested-variable"}


@given(LINE)
def test_a_text_without_variables_stays_as_it_is(text):
    literal = text.replace("${", "$${")
    assert expand(literal, {}.get) == text


@given(st.lists(LINE), LINE)
def test_expansion_puts_in_the_value_and_nothing_else(between, value):
    parts = [each.replace("$", "") for each in between]
    assert expand("${A}".join(parts), {"A": value}.get) == value.join(parts)


@given(PIECES)
def test_fields_joined_by_colons_are_the_text(text):
    assert ":".join(split_fields(text)) == text


@given(ANY)
def test_any_text_is_read_or_diagnosed(text):
    document, diagnostics = parse(text, "x")
    assert document is not None
    try:
        tomllib.loads(text)
    except ValueError:
        assert [each.code for each in diagnostics] == ["toml"]


@given(st.dictionaries(NAME, LINE), st.lists(LINE), st.dictionaries(NAME, LINE))
def test_values_come_through_to_the_byte(env, devices, annotations):
    text = "\n".join(
        [
            f"devices = {toml([each.replace('${', '$${') for each in devices])}",
            *(f"env.{name} = {quoted(value.replace('${', '$${'))}" for name, value in env.items()),
            *(
                f"annotations.{name} = {quoted(value.replace('${', '$${'))}"
                for name, value in annotations.items()
            ),
        ]
    )
    edf = resolve_text(text, file="x.toml", environment={}, directory=Path("/")).edf
    assert edf is not None
    assert edf.env == env
    assert edf.annotations == annotations
    assert edf.devices == tuple(dict.fromkeys(devices))


TABLE = st.dictionaries(LINE, LINE, min_size=1, max_size=3)
ANNOTATIONS = st.recursive(TABLE, lambda inner: st.dictionaries(LINE, LINE | inner, min_size=1, max_size=3))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "base_environment": LINE | st.lists(LINE),
            "image": ANY,
            "workdir": LINE,
            "entrypoint": st.booleans(),
            "mounts": st.lists(LINE),
            "env": TABLE,
            "annotations": ANNOTATIONS,
            "devices": st.lists(LINE),
        },
    )
)
def test_edf_toml_is_read_as_the_same_values(values):
    assert tomllib.loads(edf_toml(values)) == values


@given(st.lists(st.tuples(NAME, JSON, st.integers(0, 3)), unique_by=lambda each: each[0]))
def test_every_key_has_its_line(keys):
    text, lines = "", {}
    for name, value, blank in keys:
        text += "\n# [table]\n" * blank
        lines[name] = text.count("\n") + 1
        text += f"{name} = {toml(value)}\n"
    found = LineIndex(text)
    assert {name: found.line(name) for name in lines} == lines


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "base_environment": JSON,
            "image": JSON,
            "workdir": JSON,
            "writable": JSON,
            "mounts": JSON,
            "devices": JSON,
            "env": JSON,
            "annotations": JSON,
        },
    )
)
def test_the_schema_and_the_parser_agree(content):
    text = "\n".join(f"{key} = {toml(value)}" for key, value in content.items())
    _, diagnostics = parse(text, "x")
    try:
        EdfFile.model_validate(content, strict=True)
    except ValidationError:
        assert diagnostics
    else:
        assert not diagnostics
