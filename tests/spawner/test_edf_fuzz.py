"""Thousands of malformed EDFs: each gives a value or diagnostics, and none an exception.

``GIPFEL_FUZZ=1000000`` runs as many as that; by default 20 000, which takes six seconds.
"""

import json
import os
import random
import time
from pathlib import Path

import pytest

from gipfel_cluster.edf import as_json
from gipfel_cluster.edf.model import DIALECTS, KEYS
from gipfel_cluster.edf.resolve import resolve_text

COUNT = int(os.environ.get("GIPFEL_FUZZ", "20000"))
SEED = 20240721
SLOWEST = 2.0  # seconds for one file, hundreds of times what it takes

_SAMPLES = (
    'image = "${HOME}/x.sqsh"\nworkdir = "/work"\nentrypoint = true\nwritable = false\n',
    'base_environment = ["none", "./none.toml"]\nmounts = [\n  "/a:/b:ro+private", #\n  "${D:-/x}:/y",\n]\n',
    "[env]\nA = \"a b $ \\\" é\"\nGONE = ''\nL = '''\na\nb'''\nT = \"$${X} ${Y:-} ${A\"\n",
    '[annotations.com.hooks.cxi]\nenabled = "true"\n[annotations."com.hooks.ssh"]\nenabled = true\n',
    'annotations = { com = { hooks = { dcgm = { enabled = "True" } } } }\ndevices = ["nvidia.com/gpu=all"]\n',
    'mounts = ["/a", "./b:/b:sqsh", "~:/c"]\nnumbers = [1, 0x1F, 1.5e3, 1979-05-27, inf]\n[[other]]\n',
)
_PIECES = (
    *(
        "${",
        "$${",
        "}",
        "${A",
        "${A:-",
        ":-",
        "$A",
        "$",
        ":",
        "+",
        "..",
        "./",
        "/",
        "~",
        "\\",
        '"',
        "'",
        '"""',
    ),
    *(
        "'''",
        "[",
        "]",
        "[[",
        "{",
        "}",
        "=",
        ".",
        ",",
        "#",
        "\n",
        "\r\n",
        "\r",
        "\t",
        " ",
        "\0",
        "\x7f",
        "\ufeff",
    ),
    *(
        "é",
        "\u2028",
        "\U0001d538",
        "true",
        "nan",
        "-0",
        "0x" + "f" * 5000,
        "9" * 5000,
        "1979-13-99",
        "<x>",
        "\\u0000",
    ),
    *("\\ud800", "\\U00110000", "env", "[env]", "image", "mounts", "base_environment", "[" * 300, "a." * 300),
)


def _malformed(chance: random.Random) -> str:
    text = chance.choice(_SAMPLES) + (chance.choice(_SAMPLES) if chance.random() < 0.5 else "")
    for _ in range(chance.randint(1, 6)):
        start = chance.randrange(len(text) + 1)
        kind = chance.randrange(4)
        end = start + (chance.randint(1, 12) if kind != 1 else 0)
        if kind <= 1:
            put = chance.choice(_PIECES)
        elif kind == 2:
            put = ""
        else:
            put = text[start:end] * chance.randint(2, 4)
        text = text[:start] + put + text[end:]
    return text


def _odd(chance: random.Random) -> str:
    """TOML without a mistake, whose values are none that an EDF should have."""
    below = ("env.A", "env.B", "annotations.com.hooks.ssh.enabled", "annotations.hooks.x", "other")
    strings = ("base_environment", "image", "workdir", "mounts", "devices")
    keys = (*strings, *below) if chance.random() < 0.8 else tuple(KEYS)
    lines = {}
    for key in chance.sample(keys, 4):
        text = "".join(chance.choice(_PIECES) for _ in range(chance.randint(0, 2)))
        text = text.replace("\x7f", "")
        value = json.dumps(chance.choice(("", "/", "./", "${A}", "/a:/b:")) + text, ensure_ascii=False)
        shape = chance.random()
        if key in {"mounts", "devices"} or shape < 0.04:
            value = f"[{value}, {value}, {chance.choice(('1', value, value))}]"
        elif shape < 0.08:
            value = chance.choice(
                ("1", "true", "inf", "{}", "1979-05-27", "0x" + "f" * 5000, f"{{ A = {value} }}")
            )
        lines[key] = f"{key} = {value}"
    return "\n".join(lines.values())


def test_no_malformed_file_is_more_than_a_diagnostic():
    chance = random.Random(SEED)
    environment = {"HOME": "/home/me", "A": "1", "D": "x\ny", "Y": "\udcff", "EDF_PATH": "/nonexistent"}
    refused = accepted = 0
    for number in range(COUNT):
        text = _odd(chance) if number % 2 else _malformed(chance)
        start = time.process_time()
        dialect = DIALECTS[number % len(DIALECTS)]
        result = resolve_text(
            text, file="fuzz.toml", environment=environment, directory=Path("/nonexistent"), dialect=dialect
        )
        assert time.process_time() - start < SLOWEST, repr(text)
        errors = [each for each in result.diagnostics if each.severity == "error"]
        assert bool(errors) == (result.edf is None), repr(text)
        for each in result.diagnostics:
            assert each.message, repr(text)
            assert "\n" not in str(each), repr(text)
            assert each.line is None or 1 <= each.line <= text.count("\n") + text.count("\r") + 1, repr(text)
        if result.edf is not None:
            as_json(result)
        refused += bool(errors)
        accepted += not errors
    assert refused > COUNT / 4
    assert accepted > COUNT / 100


@pytest.mark.parametrize(
    "text",
    [
        "annotations." + "a." * 100_000 + "b = 'x'",
        "[annotations." + "a." * 100_000 + "b]\nc = 'x'",
        "x = {" + "'a'." * 100_000 + "b = 1}",
        "annotations." + "a." * 190 + "b = 1",
        "mounts = ['" + "${" * 100_000 + "']",
        "mounts = ['" + "${A}:" * 100_000 + "']",
        "mounts = ['/a:/b:" + "x+" * 50_000 + "']",
        "image = '" + "<a" * 100_000 + "-" * 100_000 + "'",
        "\n".join(f"key{number} = 1" for number in range(20_000)),
        "mounts = " + "[" * 100_000,
        "x = " + "[" * 200 + "]" * 200,
        "image = '" + "a" * 1_000_000 + "'",
        'image = "' + "\\t" * 300_000 + '"',
    ],
    ids=lambda text: text[:20],
)
def test_nothing_takes_a_time_that_grows_with_its_square(text):
    start = time.process_time()
    result = resolve_text(text, file="x.toml", environment={"A": "1"}, directory=Path("/"))
    assert str(result.diagnostics) or result.edf
    assert time.process_time() - start < 10
