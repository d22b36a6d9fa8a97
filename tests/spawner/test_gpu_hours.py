"""GPU hours of a user, from Slurm's accounting, else from the hub's history; and the remaining budget."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import SimpleNamespace
from typing import cast

import pytest

from gipfel_cluster.broker.hub_client import HUB_REQUESTS, GpuUsageRequest
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import CommandResult
from gipfel_cluster.scheduler.protocol import GpuBudget, GpuUsage
from gipfel_cluster.scheduler.slurm_output import command_error
from gipfel_cluster.scheduler.slurm_usage import (
    SlurmUsage,
    energy_text,
    parse_budgets,
    parse_energy,
    parse_gpu_hours,
)
from gipfel_spawner.cluster import ClusterSettings
from gipfel_spawner.form.options import UserOptions
from gipfel_spawner.gpu_hours import GpuHours, month_gpu_hours, summarize
from gipfel_spawner.history import SessionHistory
from gipfel_spawner.spawner import EDFSpawner
from gipfel_spawner.start import placement as placement_module
from gipfel_spawner.start.account import Account
from gipfel_spawner.start.placement import ServerPlacement
from gipfel_spawner.start.traits import SpawnerTraits

# Slurm 22.05.8: the account physics below the account lab, and course; each user row limits course further.
_LIMITS = (Path(__file__).parent / "data/slurm/assoc_mgr-22.05-two-accounts-one-nested.txt").read_text()
# Printed by the same sacct: a job of two GPUs, one of one GPU that runs, one without.
_JOBS = """\
billing=1,cpu=1,gres/gpu:gh200=2,gres/gpu=2,node=1|76
billing=1,cpu=1,gres/gpu:gh200=1,gres/gpu=1,node=1|97
billing=1,cpu=1,node=1|10
"""
_SHARES = " physics|nobody|0.250000|0.125000|0.700000\n"
_MONTH = datetime(2026, 11, 1, tzinfo=UTC)


class Commands:
    """Slurm's commands by name: an output, or what they print before they fail."""

    def __init__(self, outputs: Mapping[str, str], errors: Mapping[str, str]) -> None:
        self.outputs, self.errors = outputs, errors
        self.argvs: list[Sequence[str]] = []

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        user: str = "",
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> CommandResult:
        self.argvs.append(argv)
        if argv[0] in self.errors:
            raise command_error(argv[0], self.errors[argv[0]])
        return CommandResult(code=0, output=self.outputs[argv[0]], errors="")


def usage(user: str = "nobody", **errors: str) -> tuple[GpuUsage, Commands]:
    commands = Commands({"sacct": _JOBS, "scontrol": _LIMITS, "sshare": _SHARES}, errors)
    return asyncio.run(SlurmUsage(commands).gpu_usage(user, date(2026, 11, 1))), commands


def test_hours_are_gpus_times_seconds_also_where_only_types_are_accounted() -> None:
    assert parse_gpu_hours(_JOBS) == pytest.approx((2 * 76 + 97) / 3600)
    assert parse_gpu_hours("cpu=1,gres/gpu:a100=2,gres/gpu:h200=1|3600\n") == pytest.approx(3.0)
    assert parse_gpu_hours("no columns\n|\ncpu=1,gres/gpu=x|7\ngres/gpu=1|UNLIMITED\n") == 0


def test_energy_is_that_of_ended_jobs_where_slurm_measures_it() -> None:
    assert parse_energy(_JOBS) is None
    assert parse_energy("billing=1,cpu=1,energy=0,node=1|10\n") is None
    ended = _JOBS.replace("billing=1,", "billing=1,energy=3600000,", 2)
    assert parse_energy(ended) == pytest.approx(2.0)
    # Slurm's "no value" and "infinite".
    for unknown in (2**64 - 2, 2**64 - 1):
        assert parse_energy(ended + f"cpu=1,energy={unknown}|5\n") == pytest.approx(2.0)
    assert parse_energy(ended + f"cpu=1,gres/gpu={'9' * 5000},energy={'9' * 5000}|5\n") == pytest.approx(2.0)
    commands = Commands({"sacct": ended, "scontrol": _LIMITS, "sshare": _SHARES}, {})
    found = asyncio.run(SlurmUsage(commands).gpu_usage("nobody", date(2026, 11, 1)))
    assert found.energy_kwh == pytest.approx(2.0)
    assert [energy_text(each) for each in (0.0123, 0.9999, 1.754, 99.4, 12345.6)] == [
        "12.3 Wh",
        "1 kWh",
        "1.75 kWh",
        "99.4 kWh",
        "12,346 kWh",
    ]


def test_what_is_left_is_the_smallest_rest_up_to_the_root() -> None:
    assert parse_budgets(_LIMITS, "nobody") == (
        GpuBudget(account="course", limit=1.5, remaining=1.5),
        GpuBudget(account="physics", limit=1000.0, remaining=59998 / 60),
    )
    above = _LIMITS.replace("gres/gpu=600000(2)", "gres/gpu=120(90)")
    assert parse_budgets(above, "nobody")[1] == GpuBudget(account="physics", limit=2.0, remaining=0.5)
    spent = _LIMITS.replace("gres/gpu=60000(2)", "gres/gpu=60000(70000)")
    assert parse_budgets(spent, "nobody")[1].remaining == 0
    assert parse_budgets(_LIMITS, "other") == ()
    # A parent that names itself ends the path.
    assert parse_budgets(_LIMITS.replace("ParentAccount=lab(3)", "ParentAccount=physics(4)"), "nobody")


def test_slurm_without_accounting_or_the_user_is_no_error() -> None:
    found, commands = usage()
    assert found.used == pytest.approx(249 / 3600)
    assert len(found.budgets) == 2
    assert {"--user=nobody", "--starttime=2026-11-01"} <= set(commands.argvs[0])
    # Both as Slurm 22.05 prints them.
    assert usage(sacct="Slurm accounting storage is disabled\n")[0] == GpuUsage()
    assert usage(sacct="sacct: error: Invalid user id: nobody\n")[0] == GpuUsage(used=0.0)
    with pytest.raises(GipfelError, match="Slurm refused"):
        usage(sacct="sacct: error: Something else\n")
    for name in ("a,b", "--all", "", "a b"):
        with pytest.raises(GipfelError, match="can't be the name"):
            usage(name)


def test_hours_are_shown_if_slurm_refuses_its_limits() -> None:
    found = usage(scontrol="scontrol: error: Access/permission denied\n")[0]
    assert (found.used, found.budgets) == (pytest.approx(249 / 3600), ())


def test_a_broker_is_asked_with_a_date_and_one_user() -> None:
    request = GpuUsageRequest(user="ada", since=date(2026, 11, 1))
    assert HUB_REQUESTS.validate_json(request.model_dump_json()) == request
    with pytest.raises(ValueError, match="user"):
        HUB_REQUESTS.validate_json('{"kind": "gpu_usage", "user": "a,b", "since": "2026-11-01"}')


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SessionHistory]:
    now = [_MONTH.timestamp() + 3600]
    history = SessionHistory(tmp_path / "sessions.sqlite", logging.getLogger("test"), clock=lambda: now[0])
    for cluster, job in (("alps", "1"), ("here", "2")):
        history.begin("ada", "", cluster=cluster, job_id=job, options=UserOptions(gpus=2))
        history.on_running("ada", "", job)
    now[0] += 5400
    for job in ("1", "2"):
        history.end("ada", "", job, "ended")
    yield history
    history.close()


def told(usages: Sequence[tuple[tuple[str, ...], GpuUsage | None]], history: SessionHistory) -> GpuHours:
    return asyncio.run(summarize(usages, history, "ada", _MONTH.timestamp(), ()))


def test_accounting_counts_all_jobs_and_the_history_replaces_it(history: SessionHistory) -> None:
    plain = told([(("here",), GpuUsage())], history)
    assert (plain.text, plain.budgets) == ("3 GPU hours used this month by your sessions", ())
    budget = GpuBudget(account="physics", limit=1000, remaining=998.25)
    accounted = GpuUsage(used=10.5, budgets=(budget,))
    alone = told([(("alps",), accounted)], history)
    assert alone.text == "10.5 GPU hours used this month by your jobs"
    assert alone.budgets == ("998.2 of 1000 GPU hours left in account physics",)
    both = told([(("alps", "alps-debug"), accounted), (("here",), GpuUsage())], history)
    assert both.text == "13.5 GPU hours used this month by your jobs"
    assert both.budgets == ("998.2 of 1000 GPU hours left in account physics on alps, alps-debug",)


def test_the_form_shows_the_energy_of_those_schedulers_that_measure_it(history: SessionHistory) -> None:
    measured = GpuUsage(used=10.5, energy_kwh=4.2)
    alone = told([(("alps",), measured)], history)
    assert alone.text == "10.5 GPU hours and 4.2 kWh used this month by your jobs"
    both = told([(("alps",), measured), (("here",), GpuUsage())], history)
    assert both.text == "13.5 GPU hours and 4.2 kWh used this month by your jobs"
    partly = told([(("alps",), measured), (("eiger",), None)], history)
    assert partly.text.startswith("GPU hours this month: at least 10.5 and 4.2 kWh (no answer")


def test_the_form_shows_shares(history: SessionHistory) -> None:
    found = told([(("alps",), usage()[0])], history)
    assert found.budgets[-1] == (
        "Share of the cluster, physics: 25.0 %, used 12.5 % recently, priority 0.70 of 1"
    )
    assert usage(sshare="sshare: error: no multifactor\n")[0].shares == ()


def test_a_scheduler_without_an_answer_is_not_counted_as_zero(history: SessionHistory) -> None:
    silent = told([(("alps",), None)], history)
    assert silent.text == "GPU hours this month: unknown (no answer from the scheduler yet)"
    partly = told([(("alps",), None), (("here",), GpuUsage())], history)
    assert partly.text == "GPU hours this month: at least 3 (no answer from the scheduler yet)"


class Placement:
    """The one cluster of a user, whose account is looked up by `account`."""

    def __init__(self, tmp_path: Path, cache: object) -> None:
        traits = SimpleNamespace(user=SimpleNamespace(name="ada"), state_folder=str(tmp_path), clusters={})
        self.real = ServerPlacement(cast("SpawnerTraits", traits))
        self.settings_by_name = {"alps": ClusterSettings(name="alps", scheduler="slurm")}
        self.cluster = SimpleNamespace(scheduler=object(), cache=cache)
        self.cached_unix_name = self.real.cached_unix_name

    def shared(self, _settings: ClusterSettings) -> object:
        return self.cluster


def view(placement: Placement, history: SessionHistory, *, times: int = 1, created: float = 0.0) -> GpuHours:
    """Return what a page shows when it is viewed this many times, one after the other."""
    user = SimpleNamespace(name="ada")
    lifetime = SimpleNamespace(history=lambda: history, user_created=created)
    spawner = cast("EDFSpawner", SimpleNamespace(placement=placement, user=user, lifetime=lifetime))

    async def run() -> GpuHours:
        for _ in range(times):
            shown = await month_gpu_hours(spawner, running=())
        return shown

    return asyncio.run(run())


def test_a_directory_service_without_an_answer_stops_no_page(
    tmp_path: Path, history: SessionHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = Event()

    def never(*_arguments: object, **_options: object) -> Account:
        released.wait(30)
        raise GipfelError("No answer.")

    monkeypatch.setattr(placement_module, "account_of", never)
    begun = time.monotonic()
    try:
        shown = view(Placement(tmp_path, cache=None), history)
    finally:
        released.set()
    assert shown.text == "GPU hours this month: unknown (no answer from the scheduler yet)"
    assert time.monotonic() - begun < 20


def test_a_user_without_an_account_is_looked_up_once_a_minute(
    tmp_path: Path, history: SessionHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = []

    def unknown(name: str, **_options: object) -> Account:
        lookups.append((name, current_thread() is main_thread()))
        raise GipfelError("There is no such user.")

    monkeypatch.setattr(placement_module, "account_of", unknown)
    shown = view(Placement(tmp_path, cache=None), history, times=3)
    assert shown.text == "3 GPU hours used this month by your sessions"
    assert lookups == [("ada", False)]
    # Those were the hours of a deleted user of the same name.
    later = _MONTH.timestamp() + 86400
    shown = view(Placement(tmp_path, cache=None), history, created=later)
    assert shown.text == "0 GPU hours used this month by your sessions"
