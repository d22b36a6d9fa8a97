"""Check that files of other processes are opened by functions that refuse pipes and bound sizes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = (
    "extension/gipfel_extension",
    "widgets/gipfel_widgets",
    "spawner/gipfel_cluster/job",
    "spawner/gipfel_cluster/steps",
    "spawner/gipfel_cluster/process/tree.py",
    "spawner/gipfel_cluster/scheduler/excluded_nodes.py",
    "spawner/gipfel_cluster/runs.py",
    "spawner/gipfel_cluster/workloads",
)
#: Modules that open files in another way, and why they may.
_ALLOWED = {
    "extension/gipfel_extension/telemetry/files.py": "these are the functions",
    "extension/gipfel_extension/telemetry/sources/": "counters of the kernel",
    "extension/gipfel_extension/telemetry/ranks.py": "counters of the kernel",
    "extension/gipfel_extension/telemetry/gpu_processes.py": "what the kernel says of processes",
    "extension/gipfel_extension/storage/job_files.py": "what the kernel says of processes",
    "extension/gipfel_extension/data/sample_reader.py": "runs in a process that has a time limit",
    "extension/gipfel_extension/recorder/metric_files.py": "what the kernel says of processes",
    "extension/gipfel_extension/network/sockets.py": "what the kernel says of processes",
    "extension/gipfel_extension/recorder/storage_monitor.py": "what the kernel says of waiting for storage",
    "extension/gipfel_extension/recorder/job_processes.py": "what the kernel says of processes",
    "extension/gipfel_extension/topology/collect/hardware.py": "sysfs, which no user can replace",
    "extension/gipfel_extension/cli/report.py": "a script that is installed with plotly",
    "extension/gipfel_extension/kernels/__init__.py": "the runtime's own kernel",
    "extension/gipfel_extension/registry/settings.py": "the administrator's, read once at the start",
    "extension/gipfel_extension/routes/server.py": "scripts of this package",
    "extension/gipfel_extension/server/history.py": "a temporary file that it has just written",
    "extension/gipfel_extension/telemetry/store/compaction.py": "syncs a temporary file",
    "extension/gipfel_extension/training/papermill/values.py": "as typed, where a pipe is meant",
    "extension/gipfel_extension/training/probe_program.py": "runs in the image, with its standard library",
    "extension/gipfel_extension/training/gipfel_rank_files.py": "runs in the image, as the next ones",
    "extension/gipfel_extension/training/rank_program.py": "runs in the image, with its standard library",
    "extension/gipfel_extension/training/run_program.py": "runs in the image, with its standard library",
    "extension/gipfel_extension/training/rank_looks.py": "runs in the image, with its standard library",
    "extension/gipfel_extension/training/rank_writes.py": "runs in the image, with its standard library",
    "extension/gipfel_extension/training/rank_requests.py": "runs in the image, with its standard library",
    "extension/gipfel_extension/gate/models/convert_program.py": "runs in a sandbox that has a time limit",
    "extension/gipfel_extension/vetting/checks/storage.py": "runs in a process that has a time limit",
    "extension/gipfel_extension/vetting/check.py": "runs in a process that has a time limit",
    "extension/gipfel_extension/saturation/report/page.py": "a script of this package",
    "extension/gipfel_extension/vetting/checks/probes/": "run in the image, with its standard library",
}
#: Files of the kernel and of packages, which no user can replace.
_OF_THE_SYSTEM = ("/proc/", "_PROC /", "os.devnull", "files(__package__)")
#: Opened so, a pipe does not block, and a file that is there is not opened at all.
_SAFE_FLAGS = ("O_NONBLOCK", "O_RDWR", "O_EXCL")


def _bare_calls(text: str) -> Iterator[str]:
    """The calls of a module that open a file without regard to what it is."""
    tree = ast.parse(text)
    assigned = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    flags = [each for each in assigned if each.startswith("flags = ")]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        words = ast.unparse(node)
        name = ast.unparse(node.func)
        method = name.rpartition(".")[2]
        if method in {"read_text", "read_bytes"}:
            bare = True
        elif name in {"os.open", "posix.open"}:
            given = flags if ", flags" in words and flags else [words]
            bare = not all(any(flag in each for flag in _SAFE_FLAGS) for each in given)
        else:
            # A method of something else than a path takes no mode.
            bare = name in {"open", "io.open"} or (method == "open" and "'r" in words)
        if bare and not any(each in words for each in _OF_THE_SYSTEM):
            yield words


def _modules() -> Iterator[Path]:
    for package in _PACKAGES:
        place = _ROOT / package
        yield from [place] if place.is_file() else sorted(place.rglob("*.py"))


def test_files_of_others_are_opened_by_the_functions_for_them() -> None:
    found = {}
    used = set()
    for path in _modules():
        name = path.relative_to(_ROOT).as_posix()
        if calls := list(_bare_calls(path.read_text())):
            allowed = {each for each in _ALLOWED if name.startswith(each)}
            used |= allowed
            if not allowed:
                found[name] = calls
    assert not found, "use telemetry.files or gipfel_cluster.regular_files, or add the reason here"
    assert used == set(_ALLOWED), "what is not needed any more goes"


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("(run / 'state.json').read_bytes()", True),
        ("path.read_text(errors='replace')", True),
        ("path.open('rb')", True),
        ("open(path)", True),
        ("os.open(path, os.O_RDONLY)", True),
        ("os.open(path, os.O_RDONLY | os.O_NONBLOCK)", False),
        ("Path(f'/proc/{pid}/stat').read_text()", False),
        ("Launch.open(folder)", False),
        ("read_regular(path, 10)", False),
    ],
)
def test_what_counts_as_bare(line: str, bare: bool) -> None:
    assert bool(list(_bare_calls(line))) is bare
