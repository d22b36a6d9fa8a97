"""EDFs that are made to be expensive: the cost of checking, showing and rendering is bounded.

The files are made here and measured in a separate process: its CPU seconds, its peak memory, its output.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import command_cost
import pytest

SECONDS = 5.0
MEMORY = 500 << 20
OUTPUT = 1_000_000

MEBIBYTE = 1 << 20


def filled(start: str, piece: str, end: str = "", size: int = MEBIBYTE - 64) -> str:
    """A text of nearly a mebibyte, made of one piece over and over."""
    return start + piece * ((size - len(start) - len(end)) // len(piece)) + end


def numbered(start: str, piece: str, count: int, end: str = "") -> str:
    return start + "".join(piece.replace("#", str(number)) for number in range(count)) + end


def listed(base: str, count: int) -> str:
    return f"base_environment = [{', '.join([base] * count)}]\n"


#: The EDF `x` and files beside it, by name.
HOSTILE = {
    "bases-of-one-heavy-file": lambda: {
        "x.toml": listed('"./heavy.toml"', 190),
        "heavy.toml": numbered("mounts = [\n", '"/a#:/b#",\n', 50_000, "]"),
    },
    "bases-of-many-heavy-files": lambda: {
        "x.toml": numbered("base_environment = [", '"./h#.toml", ', 12, "]"),
        **{f"h{n}.toml": filled("mounts = [", f'"/{n}",', "]") for n in range(12)},
    },
    "bases-that-multiply": lambda: {
        "x.toml": listed('"./b0.toml"', 9),
        **{f"b{n}.toml": listed(f'"./b{n + 1}.toml"', 9) for n in range(9)},
        "b9.toml": numbered("mounts = [", '"/a#:/b#",', 1900, "]"),
    },
    "bases-that-are-missing": lambda: {"x.toml": numbered("base_environment = [", '"n#",', 60_000, "]")},
    "bases-with-steps": lambda: {
        "x.toml": numbered("base_environment = [", '"./s#.toml", ', 150, "]"),
        **{f"s{n}.toml": "" for n in range(150)},
        **{f"s{n}.setup": "\x01" * 65_000 for n in range(150)},
    },
    "one-value-of-unbraced-names": lambda: {"x.toml": filled('[env]\nA = "', "$A", '"')},
    "values-of-unbraced-names": lambda: {"x.toml": numbered("[env]\n", 'A# = "$A $B $C $D"\n', 1900)},
    "one-mount-of-unclosed-braces": lambda: {"x.toml": filled('mounts = ["', "${:", '"]')},
    "mounts-of-unclosed-braces": lambda: {"x.toml": numbered("mounts = [", '"${:${:${:",', 1900, "]")},
    "mounts-that-are-none": lambda: {"x.toml": filled("mounts = [", '"a",', "]")},
    "mounts-of-one-destination": lambda: {"x.toml": numbered("mounts = [", '"/s#:/d",', 1990, "]")},
    "mounts-in-reverse": lambda: {
        "x.toml": "mounts = [" + "".join(f'"/s{n}:/d{"/d" * n}",' for n in range(300, 0, -1)) + "]"
    },
    "mounts-with-many-flags": lambda: {
        "x.toml": "image = 'a'\nmounts = ["
        + "".join(f'"/s{n}/{"x" * 1800}:/d{n}:{"+".join(f"f{i}" for i in range(32))}",' for n in range(50))
        + "]"
    },
    "values-that-expand": lambda: {"x.toml": numbered("[env]\n", 'A# = "${LONG}${LONG}"\n', 1900)},
    "one-value-that-expands": lambda: {"x.toml": filled('[env]\nA = "', "${LONG}", '"', 60_000)},
    "paths-of-a-long-folder": lambda: {
        "x.toml": filled("image = 'a'\nmounts = [", '"./a:./b",', "]", 15_000)
    },
    "unknown-keys": lambda: {"x.toml": numbered("", "k#=1\n", 100_000)},
    "unknown-hooks": lambda: {"x.toml": numbered("[annotations.com.hooks]\n", 'h#.enabled = "x"\n', 1900)},
    "long-names": lambda: {"x.toml": filled('[annotations]\n"com.hooks.', "cxi", '" = "true"')},
    "deep-keys": lambda: {"x.toml": numbered("", "a." * 190 + "b# = 1\n", 2500)},
    "deep-arrays": lambda: {"x.toml": filled("mounts = " + "[" * 150, '"",', "]" * 150)},
    "deep-tables": lambda: {"x.toml": "annotations = " + "{ a = " * 150 + '"x"' + "}" * 150},
    "many-tables": lambda: {"x.toml": numbered("", "[annotations.a#]\nb = 1\n", 38_000)},
    "not-toml": lambda: {"x.toml": filled("", "[env]\nA = '1'\n", "“")},
    "escapes": lambda: {"x.toml": filled('[env]\nA = "', "\\u0001", '"', 380_000)},
    "flags-of-one-mount": lambda: {"x.toml": filled('mounts = ["/a:/b:', "noexec+", 'ro"]')},
}


COMMANDS = (
    ("check", "--json", "./x.toml"),
    ("check", "./x.toml"),
    ("show", "--json", "--origin", "./x.toml"),
    *(("render", "./x.toml", "--engine", engine, "--", "true") for engine in ("ce", "pyxis", "apptainer")),
)


@pytest.fixture(scope="module")
def measured():
    """Run a command in a child of a small process: a child's peak begins at what its parent holds."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as small:
        yield lambda words, folder, env: small.submit(
            command_cost.measured, words, folder, env, 4 * SECONDS
        ).result()


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_hostile_edf_costs_is_bounded(name, measured, tmp_path):
    for file, content in HOSTILE[name]().items():
        (tmp_path / file).write_text(content)
        assert len(content.encode()) <= MEBIBYTE
    environment = {"HOME": str(tmp_path), "LONG": "x" * 100_000}
    for words in COMMANDS:
        status, seconds, memory, output = measured(["edf", *words], tmp_path, environment)
        if seconds >= SECONDS:
            # Caches that other programs take can double it for a moment.
            status, seconds, memory, output = measured(["edf", *words], tmp_path, environment)
        assert seconds < SECONDS, words
        assert memory < MEMORY, words
        assert output < OUTPUT, words
        if status:
            # What is refused is refused before it is shown or rendered.
            break
