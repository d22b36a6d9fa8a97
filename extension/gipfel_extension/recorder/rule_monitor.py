"""Rules, applied by the recorder to the samples of its node and to what the node's ranks log."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path

from ..diagnosis.roles import Roles, parse_selection
from ..diagnosis.rule_run import Place, Reading, RuleWatch
from ..diagnosis.rules import EVENT_KIND, Hit, Rule
from ..telemetry.events import Event
from ..telemetry.files import open_regular
from ..telemetry.ranks import RankLocation
from ..telemetry.sample import Device, Sample, SourceError
from ..telemetry.user_metrics import METRICS_FILE
from .journal import Journal

#: Maximum seconds for reading the rules' files, which may be on a parallel file system.
_LOAD_S = 60.0
#: Age of a recording at which its rules are read. No rule's window is shorter, but most commands are, and
#: need no rules then.
_START_NS = 3 * 10**9
#: Return codes that `subprocess` reports for a process that was ended by SIGHUP, SIGINT or SIGTERM.
_ENDED = (-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM)
_METRICS_NS = 5 * 10**9
_ROLES_NS = 60 * 10**9
#: Time by which a rank may write a value late; after it, no older value is expected.
_LATE_NS = 10 * 10**9
#: Bytes of ``metrics.jsonl`` that are read at a time.
_PIECE_BYTES = 1 << 20
#: Maximum number of events of one rule; a rule that is always true causes one for each device.
_MOST_EVENTS = 200
log = logging.getLogger("gipfel.recorder")


def load_rules(environment: Mapping[str, str]) -> list[Rule]:
    """Return the enabled rules; log the mistakes in files that can't be used.

    A child process reads them, so that the recorder does not have to load YAML and pydantic.

    Raises
    ------
    OSError, ValueError, subprocess.SubprocessError
        The rules can't be read.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-m", "gipfel_extension.rules"],
        env={
            key: value
            for key, value in environment.items()
            # With the rank variables of this step, the child process would count as a rank of the job.
            if "TOKEN" not in key and key not in {"RANK", "SLURM_PROCID"}
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_LOAD_S,
        check=False,
    )
    if done.returncode in _ENDED:
        # The job is ending, and every process of its step with it.
        return []
    if done.returncode:
        if b"ModuleNotFoundError" not in done.stderr:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(said or f"their reader ended with the status {done.returncode} and no message")
        # In an image that lacks a module, such as pydantic, samples are recorded but no rules are applied.
        return []
    for line in done.stderr.decode(errors="replace").splitlines():
        log.warning("%s", line)
    return [Rule.from_json(each) for each in json.loads(done.stdout)]


class RuleMonitor:
    """Monitor that applies all rules on one node; a match of a rule (hit) becomes an event in the journal.

    Parameters
    ----------
    load
        Function that returns the rules; it is called in a separate thread.
    locations
        Function that returns the ranks of this node.
    """

    def __init__(
        self,
        run: Path,
        node: str,
        *,
        devices: Iterable[Device],
        journal: Journal,
        load: Callable[[], list[Rule]],
        locations: Callable[[], Sequence[RankLocation]],
    ) -> None:
        self._run, self._node, self._journal, self._locations = run, node, journal, locations
        self._devices = {each.uuid: each for each in devices}
        self._roles, self._roles_ns = Roles(), 0
        self._watches: list[RuleWatch] = []
        self._counts: dict[str, int] = {}
        self._metrics = _LoggedMetrics(run / METRICS_FILE, node)
        self._loaded: list[Rule] | None = None
        self._load = load
        self._thread = threading.Thread(target=self._read, name="rules", daemon=True)
        self._started_ns: int | None = None

    def check(self, samples: Sequence[Sample], now_ns: int) -> None:
        """Apply the rules to the newest samples, and to what was logged since the last call."""
        if self._started_ns is None:
            self._started_ns = now_ns
        if self._thread.ident is None and now_ns - self._started_ns >= _START_NS:
            self._thread.start()
        if self._loaded is not None:
            self._watches = [RuleWatch(rule, self._place_of(rule)) for rule in self._loaded]
            self._loaded = None
        logged = self._metrics.poll(now_ns) if any(not w.rule.device_kind for w in self._watches) else None
        for watch in self._watches:
            rule = watch.rule
            if rule.device_kind:
                hits = watch.add(self._of_devices(rule, samples))
            elif logged is not None:
                hits = watch.add([each for each in logged if rule.fits(each.key[0])])  # type: ignore[index]
                hits += watch.advance(now_ns - _LATE_NS)
            else:
                continue
            self._note(hits, now_ns)

    def _read(self) -> None:
        try:
            self._loaded = self._load()
        except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
            log.warning("Rules can't be read: %s", error)

    def _of_devices(self, rule: Rule, samples: Iterable[Sample]) -> list[Reading]:
        metric, of = rule.metric, rule.condition.of
        return [
            Reading(each.device, each.time_ns, each.values.get(metric), each.values.get(of) if of else None)
            for each in samples
            if metric in each.values and self._devices[each.device].kind == rule.device_kind
        ]

    def _place_of(self, rule: Rule) -> Callable[[Hashable], Place]:
        def place(key: Hashable) -> Place:
            if isinstance(key, tuple):
                name, rank = key
                return Place(name, "", self._node, () if rank is None else (rank,))
            device = self._devices[str(key)]
            ranks = {
                each.rank
                for each in self._locations()
                if device.kind != "gpu" or each.gpu_uuid == device.uuid
            }
            return Place(rule.metric, device.uuid, self._node, tuple(sorted(ranks)))

        return place

    def _note(self, hits: Iterable[Hit], now_ns: int) -> None:
        for hit in hits:
            name = hit.rule.name
            if hit.rule.where and not self._is_selected(hit, now_ns):
                continue
            self._counts[name] = self._counts.get(name, 0) + 1
            if self._counts[name] > _MOST_EVENTS:
                continue
            message = hit.message()
            if self._counts[name] == _MOST_EVENTS:
                message += f" Further hits of this rule on {self._node} are not reported."
            self._journal.add(Event(hit.found_ns, self._node, EVENT_KIND, hit.device, message))

    def _is_selected(self, hit: Hit, now_ns: int) -> bool:
        selection = parse_selection(hit.rule.where)
        if now_ns - self._roles_ns > _ROLES_NS:
            self._roles_ns = now_ns
            # Imported only here, because few rules select ranks by role.
            from ..job.run_roles import roles_of_run  # noqa: PLC0415

            self._roles = roles_of_run(self._run).roles
        try:
            return bool(selection.ranks(hit.ranks, self._roles))
        except SourceError:
            # The job has no such axis, or its ranks have not reported their roles yet.
            return False


class _LoggedMetrics:
    """Reader of the values that this node's ranks append to ``metrics.jsonl`` from now on."""

    def __init__(self, path: Path, node: str) -> None:
        self._path, self._node = path, node
        self._marker = json.dumps(node).encode()
        self._offset: int | None = None
        self._due_ns = 0
        self._rest = b""

    def poll(self, now_ns: int) -> list[Reading] | None:
        """Return new values sorted by time, from at most 1 MiB; None if the next reading is not due yet."""
        if now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + _METRICS_NS
        try:
            with open_regular(self._path) as file:
                size = os.fstat(file.fileno()).st_size
                if self._offset is None or size < self._offset:
                    self._offset, self._rest = (size if self._offset is None else 0), b""
                data = os.pread(file.fileno(), _PIECE_BYTES, self._offset)
        except FileNotFoundError:
            # The file does not exist yet: everything that is written later belongs to this recording.
            self._offset = 0
            return []
        except OSError:
            return []
        self._offset += len(data)
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > _PIECE_BYTES:
            self._rest = b""
        lines = (line for line in whole.split(b"\n") if self._marker in line)
        return sorted((each for line in lines for each in self._readings(line)), key=lambda r: r.time_ns)

    def _readings(self, line: bytes) -> list[Reading]:
        try:
            content = json.loads(line)
            if content["node"] != self._node:
                return []
            rank, time_ns = content["rank"], int(content["time_ns"])
            return [
                Reading((str(name), rank), time_ns, None if value is None else float(value))
                for name, value in content["values"].items()
                if value is None or isinstance(value, int | float)
            ]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return []
