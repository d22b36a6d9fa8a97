"""Protocol: the checks that vet a node, with their limits and tolerances.

`parse_entry` makes a `ProtocolCheck` of each entry of a protocol's YAML, with line numbers in its errors.
Files of vetnode, another tool that vets nodes, are accepted too (`protocol_vetnode`).
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue, ValidationError

from gipfel_cluster import definition_files
from gipfel_cluster.definition_files import MAX_CHARACTERS, YamlMapping, most_specific_error, suggestion
from gipfel_cluster.model import Frozen, GipfelError, one_line

from ..telemetry.files import read_regular
from .check import UnknownCheck, check_class
from .model import CheckResult, Owner, Scope, Severity, Verdict
from .threshold import Threshold, quantity

#: Check name and type of results about the protocol itself.
PROTOCOL = "protocol"


class CheckColumn(Frozen):
    """Check of a protocol, which is a column of a report's grid.

    ``scope`` is what one result is about: a GPU, a node, a pair of nodes, or all nodes.
    """

    name: str
    type: str
    scope: Scope
    severity: Severity = Severity.ERROR


class ProtocolCheck(CheckColumn):
    """One entry of a protocol.

    Parameters
    ----------
    type
        The check's type, as in the entry points ``gipfel.checks``.
    time_limit_s
        Seconds; None for the check's own limit.
    tolerate_degraded
        Whether a node also passes this check with the verdict "degraded".
    skip_if_alone
        Whether the check may be skipped where there is nothing to measure with: one node in the job or, for
        a check within a node, one GPU.
    requirements
        Packages that the image must have. Those that only vetnode's implementation of the check needs are
        left out.
    notes
        Remarks for the report, such as that a requirement was ignored.
    problem, fix
        Why this entry can't be run, which gives a verdict "not run"; empty if it can.
    line
        Line in the protocol's file; 0 if there is no file.
    """

    scope: Scope = Scope.NODE
    time_limit_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    tolerate_degraded: bool = False
    skip_if_alone: bool = False
    threshold: Threshold | None = None
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""
    line: int = 0

    def accepts(self, verdict: Verdict) -> bool:
        """Return whether a node passes this check with this verdict."""
        return verdict is Verdict.PASS or (verdict is Verdict.DEGRADED and self.tolerate_degraded)

    def not_applicable(self, node: str, reason: str) -> CheckResult:
        """Return the result where there is nothing that the check could measure.

        This result keeps the node from passing if the check has severity error and a threshold, unless
        `skip_if_alone` is set.
        """
        required = self.threshold is not None and self.severity is Severity.ERROR
        may_skip = self.skip_if_alone or not required
        fix = "" if may_skip else "Vet two nodes or more, or set `skip_if_alone: true` in this check."
        evidence = {"applies": False, "not_required": may_skip}
        return self.not_run(node, reason, fix, evidence=evidence, owner=Owner.PROTOCOL)

    def not_run(self, node: str, reason: str, fix: str = "", **changes: object) -> CheckResult:
        """Return a result "not run" of this check, with changed fields; an empty `node` means all nodes."""
        result = CheckResult(
            check=self.name, type=self.type, scope=self.scope, subject=node or "all", node=node,
            verdict=Verdict.NOT_RUN, reason=reason, fix=fix, severity=self.severity,
        )  # fmt: skip
        return result.model_copy(update=changes)


class VettingProtocol(Frozen):
    """Loaded protocol.

    Parameters
    ----------
    source
        Its file, or the name of a shipped protocol.
    time_limit_s
        Seconds for the whole run; None for the sum of its checks' limits.
    """

    name: str
    checks: tuple[ProtocolCheck, ...]
    description: str = ""
    source: str = ""
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    notes: tuple[str, ...] = ()

    @property
    def runnable(self) -> tuple[ProtocolCheck, ...]:
        """Return the checks that can be run, in their order."""
        return tuple(check for check in self.checks if not check.problem)

    @cached_property
    def by_name(self) -> Mapping[str, ProtocolCheck]:
        """Return the checks by their names."""
        return {check.name: check for check in self.checks}

    def accepts(self, result: CheckResult) -> bool:
        """Return whether a node can still pass with this result."""
        if result.severity is not Severity.ERROR or result.not_required:
            return True
        entry = self.by_name.get(result.check)
        return entry.accepts(result.verdict) if entry else result.verdict is Verdict.PASS

    @property
    def digest(self) -> str:
        """Return a digest of the checks and their settings, which is independent of the protocol's name."""
        ignored = {"line", "notes", "problem", "fix"}
        settings = "\n".join(check.model_dump_json(exclude=ignored) for check in self.checks)
        return hashlib.sha256(settings.encode()).hexdigest()[:16]

    def problems(self) -> tuple[CheckResult, ...]:
        """Return the problems of the protocol itself, as results that count for every node."""
        # A check that can't be run counts as an error, regardless of its severity.
        changes = {"severity": Severity.ERROR, "owner": Owner.PROTOCOL}
        results = [
            check.not_run(
                "", (f"Line {check.line}: " if check.line else "") + check.problem, check.fix, **changes
            )
            for check in self.checks
            if check.problem
        ]
        if not any(check.severity is Severity.ERROR for check in self.checks):
            missing = ProtocolCheck(name=PROTOCOL, type=PROTOCOL, scope=Scope.ALL)
            reason = "The protocol has no check of severity error, so no node can pass."
            fix = "Add a check, or use a shipped protocol such as quick."
            results.append(missing.not_run("", reason, fix, owner=Owner.PROTOCOL))
        return tuple(results)


#: Keys allowed in every entry, including entries in vetnode's format.
KEYS = (
    "name", "type", "scope", "severity", "time_limit", "threshold", "tolerate_degraded", "skip_if_alone",
    "requirements", "parameters",
)  # fmt: skip
#: Keys whose values need no conversion.
_UNCONVERTED = ("severity", "tolerate_degraded", "skip_if_alone")


def read_yaml(text: str, source: str) -> YamlMapping:
    """Return the mapping in a text; `source` names the text in errors.

    Raises
    ------
    GipfelError
        The text is not valid YAML, is not a mapping, or is too large.
    """
    return definition_files.read_yaml(
        text, source, "protocol", "Write 'name' and 'checks' (or vetnode's 'evals')."
    )


def read_yaml_file(path: Path) -> YamlMapping:
    """Return the mapping in a file; raise GipfelError where it can't be read."""
    try:
        if path.is_dir():
            raise GipfelError(f"{path} is a directory.", "Name the protocol's file.")
        content = read_regular(path, MAX_CHARACTERS * 4, follow=True)
        return read_yaml(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise GipfelError(f"{path} is not UTF-8 text.", "Give the path of a YAML file.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GipfelError(
            f"{path} can't be read: {reason}.", "Name a protocol's file or a shipped protocol."
        ) from error


def parse_entry(document: Mapping[str, Any], *, line: int = 0) -> ProtocolCheck:
    """Return the check of an entry in Gipfel's format; its `problem` is set if it can't be run."""
    lines = getattr(document, "lines", {})
    type_ = str(document.get("type") or "")
    name = str(document.get("name") or type_ or "without a name")[:200]
    name = one_line(name) or "without a name"
    unknown = [key for key in document if key not in KEYS]
    if unknown:
        at = lines.get(unknown[0], line)
        fix = suggestion(unknown[0], KEYS) or "Write parameters of a check below 'parameters'."
        return unusable_entry(name, type_, at, f"{unknown[0][:60]!r} is not a key of a check.", fix)
    if not type_:
        return unusable_entry(name, "", line, "This check has no type.", "Set 'type', such as temperature.")
    try:
        check = check_class(type_)
    except UnknownCheck as error:
        return unusable_entry(name, type_, lines.get("type", line), error.problem, error.fix)
    return validate_entry(document, name, type_, check, line)


def validate_entry(  # noqa: PLR0911 - one return for each part that can be wrong
    document: Mapping[str, Any], name: str, type_: str, check: Any, line: int
) -> ProtocolCheck:
    """Return the entry after validating scope, threshold and parameters."""
    lines = getattr(document, "lines", {})
    scopes = getattr(check, "scopes", (check.scope,))
    scope = document.get("scope", check.scope)
    if scope not in [str(each) for each in scopes]:
        allowed = ", ".join(scopes)
        return unusable_entry(
            name, type_, lines.get("scope", line), f"The scope of {type_} can be: {allowed}.", "Choose one."
        )
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        return unusable_entry(
            name, type_, lines.get("parameters", line), "'parameters' is not a mapping.", "Write KEY: VALUE."
        )
    try:
        check.model_validate(dict(parameters))
    except ValidationError as error:
        return unusable_entry(name, type_, *_first_error(error, parameters, line, tuple(check.model_fields)))
    except RecursionError:
        return unusable_entry(name, type_, line, "The parameters are nested too deeply.", "Correct them.")
    requirements = document.get("requirements") or []
    requirements = [requirements] if isinstance(requirements, str) else requirements
    values = {
        "name": name, "type": type_, "scope": Scope(scope), "line": line,
        "parameters": dict(parameters), "threshold": document.get("threshold"), "requirements": requirements,
        **{key: document[key] for key in _UNCONVERTED if document.get(key) is not None},
    }  # fmt: skip
    try:
        if document.get("time_limit") is not None:
            values["time_limit_s"] = quantity(document["time_limit"])
        return ProtocolCheck.model_validate(values)
    except ValidationError as error:
        return unusable_entry(name, type_, *_first_error(error, document, line, KEYS))
    except ValueError as error:
        return unusable_entry(
            name, type_, lines.get("time_limit", line), f"The time limit {error}.", "Write it as 30 s."
        )


def unusable_entry(name: str, type_: str, line: int, problem: str, fix: str) -> ProtocolCheck:
    """Return an entry that can't be run."""
    # Quoted text comes from the file: control characters must not reach a terminal.
    return ProtocolCheck(
        name=name, type=one_line(type_)[:80] or "unknown", line=line, problem=one_line(problem)[:600], fix=fix
    )


def _first_error(
    error: ValidationError, document: Mapping[str, Any], line: int, known: tuple[str, ...]
) -> tuple[int, str, str]:
    """Return line, problem and fix of the first error."""
    wrong = most_specific_error(error)
    path = [str(part) for part in wrong["loc"]]
    value: Any = document
    for part in path:
        if isinstance(value, YamlMapping):
            line = value.lines.get(part, line)
        value = value.get(part) if isinstance(value, Mapping) else None
    key = ".".join(path)[:120]
    if wrong["type"] == "extra_forbidden":
        known = tuple(Threshold.model_fields) if path[0] == "threshold" else known
        return (
            line,
            f"{key!r} is not known.",
            suggestion(path[-1], known) or f"Known keys: {', '.join(known)}.",
        )
    message = str(wrong["msg"]).removeprefix("Value error, ")
    return line, f"{key or 'This'}: {message}.", "Correct the value."
