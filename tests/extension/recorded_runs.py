"""Run folders with samples of a known course."""

from pathlib import Path

from gipfel_extension.recorder.journal import Journal
from gipfel_extension.recorder.sample_files import SampleWriter, Settings
from gipfel_extension.telemetry.ranks import RankLocation, ranks_file, ranks_json
from gipfel_extension.telemetry.sample import Device, Provenance, Sample
from gipfel_extension.telemetry.sources import SystemClock

START_NS = 1_800_000_000 * 10**9


def hot_run(folder: Path) -> Path:
    """Return a run of two ranks whose GPUs are hot all the time."""
    run = folder / "site-1"
    telemetry = run / "telemetry"
    telemetry.mkdir(parents=True)
    devices = tuple(Device(uuid, "gpu", "GPU", i, "n1") for i, uuid in enumerate(("GPU-a", "GPU-b")))
    settings = Settings(telemetry, "n1", "job", 1.0, 5.0)
    origin = Provenance("n1", "job", "test", False, 1.0, devices)
    journal = Journal(telemetry, "n1", "job", SystemClock())
    writer = SampleWriter(settings, origin, journal, SystemClock())
    writer.add(
        [Sample(START_NS + s * 10**9, s, d.uuid, {"GPU_TEMP": 90.0}) for s in range(60) for d in devices]
    )
    writer.flush()
    writer.finish()
    where = [RankLocation(rank, "n1", 100 + rank, d.uuid, "python") for rank, d in enumerate(devices)]
    ranks_file(telemetry, "n1", "job").write_text(ranks_json(where))
    (run / "roles.json").write_text('{"0": {"dp": 0}, "1": {"dp": 1}}')
    return run
