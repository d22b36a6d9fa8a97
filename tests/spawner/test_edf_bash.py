"""Expansion of EDF values, compared with bash itself; ambiguous ones are refused."""

import subprocess

import pytest

from gipfel_cluster.edf.expand import ExpansionError, expand_bash

VARIABLES = {"A": "/scratch/me/me.tar", "B": "b", "EMPTY": "", "WORD": "Ab cD"}
FORMS = [
    *("plain", "$A", "${A}", "x$B-y", "$B$B", "a$", "${#A}", "a}b", "${UNSET:-${B}}", "${UNSET-$A}"),
    *("${EMPTY:-x}", "${EMPTY-x}", "${B:+yes}", "${EMPTY:+yes}", "${EMPTY+yes}", "${UNSET+yes}", "${B:?no}"),
    *("${A%/*}", "${A%%/*}", "${A#*/}", "${A##*/}", "${A%.tar}", "${A%x}", "${A#?}", "${A%%m*}", "${A##/*m}"),
    *("${A/me/you}", "${A//me/you}", "${A//\\//_}", "${A/x/y}", "${A//me}", "${A:1}", "${A:1:3}", "${A: -3}"),
    *("${A:(-3)}", "${WORD^^}", "${WORD,,}", "${WORD^}", "${WORD,}", "${UNSET:-${EMPTY:-${B}}}", "${A%$B}"),
    *(
        "${UNSET:-}",
        "\\$B",
        "a\\\\b",
        "${UNSET:-a b}",
        "${A:0:100}",
        "${A:30}",
        "${B/b/\\}}",
        "${A%\\.*}",
        "${A#*\\/}",
    ),
]


@pytest.mark.parametrize("text", FORMS)
def test_a_form_is_what_bash_makes_of_it(text):
    script = f'set -u; echo -n "{text}"'
    argv = ["bash", "-r", "-c", script]
    done = subprocess.run(argv, env=VARIABLES, capture_output=True, text=True, timeout=60, check=True)
    assert expand_bash(text, VARIABLES.get) == done.stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("${A", "unclosed-variable"),
        ("${A:-${B}", "unclosed-variable"),
        ("${A%x", "unclosed-variable"),
        ("${}", "bad-variable"),
        ("${A@Q}", "bad-variable"),
        ("${A%**x}", "bad-variable"),
        ("${A%[ab]}", "bad-variable"),
        ("${A:x}", "bad-variable"),
        ("${!A}", "bad-variable"),
        ("${UNSET}", "unknown-variable"),
        ("$UNSET", "unknown-variable"),
        ("${UNSET%x}", "unknown-variable"),
        ("${EMPTY:?no}", "unknown-variable"),
        ("${A:-" * 30 + "}" * 30, "bad-variable"),
        ("${A}" * 5000, "too-long"),
        ("${A//m/" + "x" * 40_000 + "}" * 2, "too-long"),
    ],
)
def test_what_is_not_known_is_refused(text, code):
    with pytest.raises(ExpansionError) as raised:
        expand_bash(text, VARIABLES.get)
    assert raised.value.code == code
