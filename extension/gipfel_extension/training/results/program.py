"""What a run computed with: the script, module or notebook, and how it was called."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from os.path import normpath
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError

from ...telemetry.files import read_record_file
from ..launches.plan import LaunchPlan
from ..spec import LaunchSpec

#: Words that start another program: the script is behind them.
_STARTERS = re.compile(
    r"python[0-9.]*|torchrun|accelerate|deepspeed|papermill|srun|mpirun|mpiexec|env|nice|bash|sh|uv|time|numactl"
)
#: Those that take a module by -m.
_TAKE_MODULES = re.compile(r"python[0-9.]*|torchrun|accelerate|deepspeed")
_LAUNCHER_MODULES = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "papermill")
)
_FILE = re.compile(r".+\.(?:py|ipynb|sh)")
_NUMBER = re.compile(r"-?[0-9.]+(?:e-?[0-9]+)?", re.IGNORECASE)
_ASSIGNED = re.compile(r"\+{0,2}(?P<name>[A-Za-z_][\w./-]*)=(?P<value>.*)", re.DOTALL)
_RANKS_A_NODE = re.compile(r"--(?:nproc[_-]per[_-]node|ntasks-per-node)(?:=(?P<value>\d+))?")
_RANKS = re.compile(r"(?:-n|-np|--ntasks|--num_processes|--np)(?:=(?P<value>\d+))?")
_NODES = re.compile(r"(?:-N|--nodes|--nnodes)(?:=(?P<value>\d+))?")
_MOST_WORDS = 4096
#: Values that switch an option off.
_FALSE = frozenset(("", "0", "false", "no", "none", "off"))


@dataclass(frozen=True)
class Program:
    """A program and its call.

    Parameters
    ----------
    name
        The script's or notebook's absolute path, the module's or command's name, or a digest of a cell.
    options
        Values by the names of options, parameters and variables, in lower case with underscores; what has no
        name by its position.
    ranks
        Processes that the launcher starts; None where no launcher says so.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    ranks: int | None = None

    def value(self, pattern: re.Pattern[str]) -> str | None:
        """Return the value of the first option whose name a pattern fits; None where there is none."""
        return next((value for name, value in self.options.items() if pattern.search(name)), None)

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Return whether an option of such a name is there and switched on."""
        return (self.value(pattern) or "").lower() not in _FALSE

    def on(self, name: str) -> bool:
        """Return whether an option of exactly this name is there and switched on."""
        return self.options.get(name, "").lower() not in _FALSE


def program_of_run(run: Path) -> Program | None:
    """Return what a run folder's job or command ran; None where its record doesn't say, as a server's."""
    record = read_record_file(run)
    options = record.get("options")
    options = options if isinstance(options, dict) else {}
    if record.get("kind") == "recording":
        command = record.get("command")
        words = [str(word) for word in command] if isinstance(command, list) else []
        return program_of_command(words, str(record.get("directory") or ""))
    if record.get("kind") == "launch" and isinstance(options.get("launch"), str):
        return program_of_launch(Path(options["launch"]))
    if record.get("kind") == "notebook" and isinstance(options.get("notebook"), str):
        return Program(options["notebook"], _pairs(options.get("parameters")))
    return None


def program_of_launch(folder: Path) -> Program | None:
    """Return what a launch ran; None where its plan can't be read."""
    try:
        plan = LaunchPlan.load(folder)
    except GipfelError:
        return None
    spec = plan.spec
    # Unnamed cells have one name, and nothing in common but that.
    cell = spec.code if spec.name == LaunchSpec.model_fields["name"].default else spec.name
    name = {"cell": f"cell {sha256(cell.encode()).hexdigest()[:12]}", "module": spec.target}
    given = {**spec.parameters, **{f"env.{key}": value for key, value in spec.environment.items()}}
    options = {**_options(spec.arguments), **{_plain(key): str(value) for key, value in given.items()}}
    return Program(name.get(spec.kind, plan.target), options, spec.ranks)


def program_of_command(words: Sequence[str], directory: str) -> Program | None:
    """Return the program of a command line; None of an empty one, and of a file that nobody can tell where.

    Parameters
    ----------
    directory
        Where it was started; empty where that is unknown.
    """
    words = words[:_MOST_WORDS]
    starter = ""
    for place, word in enumerate(words):
        named = word.rpartition("/")[2]
        following = words[place + 1] if place + 1 < len(words) else ""
        if word == "-m" and _TAKE_MODULES.fullmatch(starter) and following:
            if following not in _LAUNCHER_MODULES:
                return Program(following, _options(words[place + 2 :]), _ranks(words[:place]))
        elif _STARTERS.fullmatch(named):
            starter = named
        elif _FILE.fullmatch(word) and not word.startswith("-") and (starter or place == 0):
            if not (directory or word.startswith("/")):
                return None
            path = normpath(Path(directory, word))
            return Program(path, _options(words[place + 1 :]), _ranks(words[:place]))
    if not words or starter:
        return None
    return Program(words[0].rpartition("/")[2], _options(words[1:]))


def _options(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    positions = 0
    waiting = ""
    for word in words:
        assigned = _ASSIGNED.fullmatch(word.lstrip("-"))
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            waiting = ""
            if assigned:
                found[_plain(assigned["name"])] = assigned["value"]
            else:
                waiting = _plain(word.lstrip("-"))
                found[waiting] = "true"
        elif waiting:
            found[waiting], waiting = word, ""
        elif assigned:
            found[_plain(assigned["name"])] = assigned["value"]
        else:
            found[str(positions)] = word
            positions += 1
    return found


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace("/", ".")


def _pairs(given: Any) -> dict[str, str]:
    pairs = given if isinstance(given, list) else []
    return {_plain(str(each[0])): str(each[1]) for each in pairs if isinstance(each, list) and len(each) == 2}


def _ranks(words: Sequence[str]) -> int | None:
    """Return how many processes a launcher's words ask for; None where they don't say."""
    each, whole, nodes = (_number(words, pattern) for pattern in (_RANKS_A_NODE, _RANKS, _NODES))
    return (nodes or 1) * each if each is not None else whole


def _number(words: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    for place, word in enumerate(words):
        if found := pattern.fullmatch(word):
            value = found["value"] or (words[place + 1] if place + 1 < len(words) else "")
            return int(value) if value.isdecimal() and len(value) < 8 else None
    return None
