"""References in a blueprint's texts, such as ``${socket}``, and mistakes that concern several values."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gipfel_cluster.definition_files import CrossProblem

if TYPE_CHECKING:
    from .blueprint import Blueprint, Part

#: A reference ``${…}``, or ``$$`` for a dollar sign.
REFERENCE = re.compile(r"\$(?:\$|\{([^{}]{0,100})\})")
_PLAIN_REFERENCES = ("python", "prefix", "path", "storage")
_NODE_REFERENCES = ("nodes.count", "nodes.rank", "nodes.first", "nodes.port")


def cross_problems(blueprint: "Blueprint") -> Iterator[CrossProblem]:
    """Yield the mistakes that concern several values: parts that don't exist, cycles, unknown references."""
    names = set(blueprint.parts)
    if len(names) > 1 and not blueprint.front:
        yield CrossProblem(
            path=("parts",), problem="a service of several parts needs 'front'", fix="Name the part to show."
        )
    if blueprint.front and blueprint.front not in names:
        yield CrossProblem(
            path=("front",), problem=f"there is no part {blueprint.front!r}", fix=_list(sorted(names))
        )
    yield from _handover_problems(blueprint)
    yield from _node_problems(blueprint)
    for name, part in blueprint.parts.items():
        for number, needed in enumerate(part.needs):
            if needed not in names or needed == name:
                path = ("parts", name, "needs", number)
                problem = f"{needed!r} is not another part"
                yield CrossProblem(path=path, problem=problem, fix=_list(sorted(names - {name})))
        for where, text in part.texts():
            for problem, fix in _reference_problems(blueprint, part, text):
                yield CrossProblem(path=("parts", name, *where), problem=problem, fix=fix)
        wanted = f"${{{part.listen}}}"
        if not any(wanted in text for _, text in part.texts()):
            problem = f"neither the command nor a variable contains {wanted}"
            fix = "Let the program listen on the Unix socket ${socket}, or with 'listen: port' on ${port}."
            yield CrossProblem(path=("parts", name, "command"), problem=problem, fix=fix)
    if all(set(part.needs) <= names for part in blueprint.parts.values()):
        try:
            blueprint.start_order()
        except ValueError as error:
            yield CrossProblem(path=("parts",), problem=str(error), fix="Remove one of the 'needs'.")


def _handover_problems(blueprint: "Blueprint") -> Iterator[CrossProblem]:
    if blueprint.handover != "overlap":
        return
    if not blueprint.keep_up:
        problem = "nothing takes over from a service that is not started again"
        yield CrossProblem(path=("handover",), problem=problem, fix="Add 'keep_up: true'.")
    if any("${storage}" in text for part in blueprint.parts.values() for _, text in part.texts()):
        problem = "two jobs would write to ${storage} at the same time"
        yield CrossProblem(path=("handover",), problem=problem, fix="Use 'stop-first'.")


def _node_problems(blueprint: "Blueprint") -> Iterator[CrossProblem]:
    for name, part in blueprint.parts.items():
        if part.workers and part.listen == "port":
            problem = "a part that listens on a port has no network, through which it could reach its workers"
            fix = "Let it listen on the Unix socket ${socket}."
            yield CrossProblem(path=("parts", name, "workers"), problem=problem, fix=fix)
    if blueprint.resources.nodes > 1 and not any(part.workers for part in blueprint.parts.values()):
        problem = "all nodes but the first would be idle"
        fix = "Add 'workers' to a part, the command on the further nodes, or ask for one node."
        yield CrossProblem(path=("resources", "nodes"), problem=problem, fix=fix)


def ports_of(blueprint: "Blueprint", part: "Part") -> tuple[str, ...]:
    """Return the needed parts that a part reaches by port, since both can listen only on TCP."""
    if part.listen != "port":
        return ()
    return tuple(
        each for each in part.needs if each in blueprint.parts and blueprint.parts[each].listen == "port"
    )


def reference_names(blueprint: "Blueprint", part: "Part") -> tuple[str, ...]:
    """Return everything that a part's texts may refer to."""
    has_packages = bool(blueprint.environment.pip or blueprint.environment.npm)
    return (
        *_PLAIN_REFERENCES,
        # Each node would need a directory of its own.
        *(_NODE_REFERENCES if part.workers else ("scratch",)),
        part.listen,
        *(("environment",) if has_packages else ()),
        *(f"parameters.{name}" for name in blueprint.parameters),
        *(f"parts.{name}.socket" for name in part.needs),
        *(f"parts.{name}.port" for name in ports_of(blueprint, part)),
        *(f"secrets.{name}" for name in part.secrets),
    )


def _reference_problems(blueprint: "Blueprint", part: "Part", text: str) -> Iterator[tuple[str, str]]:
    known = reference_names(blueprint, part)
    for match in REFERENCE.finditer(text):
        if match[1] is not None and match[1] not in known:
            yield f"${{{match[1]}}} is not known", _list(known)
    if "$" in REFERENCE.sub("", text):
        yield "a '$' starts no reference", "Write ${NAME}, or $$ for a dollar sign."


def _list(names: Iterable[str]) -> str:
    known = ", ".join(names)
    return f"Use one of: {known}." if known else "Remove it."
