import pytest

from gipfel_cluster.edf.expand import ExpansionError, expand, split_fields, unbraced_variables

VARIABLES = {"A": "1", "EMPTY": "", "COLON": "/a:/b"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("${A}", "1"),
        ("x${A}y${A}", "x1y1"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${NONE:-/x}", "/x"),
        ("${EMPTY:-/x}", "/x"),
        ("${A:-/x}", "1"),
        ("$${A}", "${A}"),
        ("$A and $$A", "$A and $$A"),
        ("é ${COLON} ü", "é /a:/b ü"),
    ],
)
def test_expands(text, expanded):
    assert expand(text, VARIABLES.get) == expanded


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("${NONE}", "unknown-variable"),
        ("a ${A", "unclosed-variable"),
        ("${}", "bad-variable"),
        ("${1}", "bad-variable"),
        ("${A-x}", "bad-variable"),
        ("${NONE:-${A}}", "nested-variable"),
    ],
)
def test_refuses(text, code):
    with pytest.raises(ExpansionError) as error:
        expand(text, VARIABLES.get)
    assert error.value.code == code


def test_an_unknown_variable_is_named():
    with pytest.raises(ExpansionError, match="NONE"):
        expand("${NONE}", VARIABLES.get)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("/a", ("/a",)),
        ("/a:/b:ro", ("/a", "/b", "ro")),
        ("${DATA:-/x}:/y", ("${DATA:-/x}", "/y")),
        ("/a:${B:-/b}:ro", ("/a", "${B:-/b}", "ro")),
        ("$${A:B}:/y", ("$${A:B}", "/y")),
    ],
)
def test_a_colon_inside_a_variable_separates_nothing(text, fields):
    assert split_fields(text) == fields


def test_variables_without_braces_are_found():
    assert unbraced_variables("$USER ${HOME} $$X") == ("USER", "X")
