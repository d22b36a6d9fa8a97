"""Detection and false-positive rates of ``gipfel scan`` and four other scanners on model files.

Prints two rows for each peer: files found (peer/ours), and false alarms (ours, of the harmless files).
The files are those of the tests' zoo. Each peer is installed by pip into an environment of its own below
``build/peers`` and runs in a network namespace without routes, its telemetry off. One that can't be installed
is named and left out.

With ``--table`` it prints a Markdown table instead: which scanner finds which file.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "tests/extension"), str(_ROOT / "tests/bench/parts")]

import model_zoo as zoo  # noqa: E402
from peer_environment import peer_python  # noqa: E402

from gipfel_extension.gate.models.tree import TreeScan  # noqa: E402

LEFT_OUT = 77
_INSTALL_S = 300
_SCAN_S = 300
#: Broken files and unknown formats are in the zoo too, but are not hostile.
_HOSTILE = {name: each for name, each in zoo.HOSTILE.items() if each[1] in ("malicious", "needs code")}
#: Programs that print the names of files with findings as JSON, by each peer's own Python interface.
_DRIVERS = {
    "picklescan": """
from picklescan.scanner import scan_file_path
def accuses(path): return scan_file_path(path).infected_files > 0
""",
    "fickling": """
from fickling.analysis import Severity, check_safety
from fickling.fickle import StackedPickle
def accuses(path):
    with open(path, "rb") as file:
        return any(check_safety(each).severity != Severity.LIKELY_SAFE for each in StackedPickle.load(file))
""",
    "modelscan": """
from modelscan.modelscan import ModelScan
def accuses(path): return ModelScan().scan(path)["summary"]["total_issues"] > 0
""",
    # Its exit status is 1 for these severities, and 2 for files that it can't read.
    "modelaudit": """
from modelaudit.core import scan_model_directory_or_file
def accuses(path):
    issues = scan_model_directory_or_file(path).issues
    severities = [str(getattr(each.severity, "value", each.severity)) for each in issues]
    return "warning" in severities or "critical" in severities
""",
}
#: Packages that a peer imports without requiring them.
_FURTHER = {"fickling": ("typing-extensions",)}
#: A file that a peer can't read is neither found nor accused.
_LOOP = """
import json, sys
from pathlib import Path
accused, errors = [], []
for path in sorted(Path(sys.argv[1]).rglob("*")):
    if path.is_file():
        try:
            if accuses(str(path)): accused.append(str(path))
        except BaseException as error:
            errors.append(str(path))
print("\\n" + json.dumps({"accused": accused, "errors": errors}))
"""


def main() -> int:
    """Measure; 1 where a peer finds more than Gipfel, or Gipfel accuses a harmless file of malice."""
    as_table = sys.argv[1:] == ["--table"]
    with tempfile.TemporaryDirectory() as name:
        hostile, harmless = Path(name, "hostile"), Path(name, "harmless")
        zoo.write(_made(hostile), _HOSTILE)
        zoo.write(_made(harmless), zoo.BENIGN)
        ours = {each.path: each.verdict for place in (hostile, harmless) for each in TreeScan().items(place)}
        found = {path for path, verdict in ours.items() if _is_in(path, hostile) and verdict != "plain"}
        false = [path for path, verdict in ours.items() if _is_in(path, harmless) and verdict == "malicious"]
        rows, marks = [], {}
        for peer in _DRIVERS:
            python = peer_python(peer, [peer, *_FURTHER.get(peer, ())], _INSTALL_S)
            if python is None:
                continue
            theirs, errors = _accused(python, peer, hostile)
            alarms, others = _accused(python, peer, harmless)
            print(f"{peer}: {len(errors)} of {len(_HOSTILE)} files could not be read by it.", file=sys.stderr)
            marks[peer] = dict.fromkeys((*errors, *others), "!") | dict.fromkeys((*theirs, *alarms), "●")
            rows += [
                _row(f"found, {peer} (peer/ours)", len(found), len(theirs), len(theirs) / len(found), 1.0),
                _row(
                    f"false alarms, {peer} (of harmless)",
                    len(false),
                    len(alarms),
                    len(false) / len(zoo.BENIGN),
                    0.0,
                ),
            ]
        if as_table:
            _print_table(ours, marks, hostile)
            return 0
    for row in rows:
        print(json.dumps(row))
    if not rows:
        return LEFT_OUT
    return 0 if all(row["holds"] for row in rows) else 1


def _is_in(path: str, folder: Path) -> bool:
    return Path(path).is_relative_to(folder)


def _print_table(ours: dict[str, str], marks: dict[str, dict[str, str]], hostile: Path) -> None:
    """Print who accuses which file: ● accused, ○ not accused, ! not read."""
    for title, wanted in (("hostile", True), ("harmless", False)):
        print(f"| {title} file | `gipfel scan` | {' | '.join(marks)} |\n| --- {'| --- ' * (len(marks) + 1)}|")
        for path, verdict in sorted(ours.items()):
            if _is_in(path, hostile) is wanted:
                name = "/".join(Path(path).parts[len(hostile.parts) :])
                print(
                    f"| `{name}` | {verdict} | {' | '.join(each.get(path, '○') for each in marks.values())} |"
                )
        print()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _row(name: str, ours: int, peer: int, ratio: float, bound: float) -> dict[str, object]:
    return {
        "name": f"scan-models {name}",
        "ours": ours,
        "peer": peer,
        "unit": "files",
        "ratio": ratio,
        "bound": bound,
        "holds": ratio <= bound,
    }


def _accused(python: Path, peer: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return the files that a peer accuses, and those that it could not read."""
    offline = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None:
        raise SystemExit("The peers run without a network, which needs unshare of util-linux.")
    command = [*offline, str(python), "-c", _DRIVERS[peer] + _LOOP, str(folder)]
    environment = {**os.environ, "PROMPTFOO_DISABLE_TELEMETRY": "1", "NO_ANALYTICS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SCAN_S, check=True, env=environment
    )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return answer["accused"], answer["errors"]


if __name__ == "__main__":
    sys.exit(main())
