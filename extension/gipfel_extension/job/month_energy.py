"""Energy of a user's runs of this month as their recorders measured it, for ``gipfel quota``, the panel."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gipfel_cluster.regular_files import read_regular
from gipfel_cluster.runs import runs_root
from gipfel_cluster.scheduler.slurm_usage import QuotaSection
from gipfel_cluster.workloads.run_folders import is_run_folder, summary_of

_MAX_BYTES = 16 << 20


def energy_sections(environment: Mapping[str, str], now: datetime) -> Iterator[QuotaSection]:
    """Yield a section with the energy of the runs that began in this month; none if no run was measured.

    A run's energy is that of its score: of its GPUs, and of its hosts where their power was recorded.
    """
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    hours = [each for each in _watt_hours(runs_root(dict(environment)), month) if each is not None]
    if hours:
        runs = "1 run" if len(hours) == 1 else f"{len(hours)} runs"
        yield QuotaSection(title=f"Energy this month: {sum(hours) / 1000:.3g} kWh, measured in {runs}")


def _watt_hours(root: Path, since: datetime) -> Iterator[float | None]:
    try:
        folders = [each for each in root.iterdir() if is_run_folder(each)]
    except OSError:
        return
    for folder in folders:
        record = _read(folder / "record.json")
        try:
            started = datetime.fromisoformat(str(record.get("started")))
        except ValueError:
            continue
        if (started if started.tzinfo else started.replace(tzinfo=UTC)) >= since:
            yield summary_of(record, _read(folder / "score.json")).energy_wh


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
