"""A stand-in for Slurm's commands where no cluster is configured."""

from pathlib import Path

#: What sbatch 24.11 prints where it finds no configuration.
FOUND_NOTHING = """\
echo "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host" >&2
echo "sbatch: error: fetch_config: DNS SRV lookup failed" >&2
echo "sbatch: error: _establish_config_source: failed to fetch config" >&2
echo "sbatch: fatal: Could not establish a configuration source" >&2
exit 1
"""


def unconfigured_slurm(folder: Path, body: str = FOUND_NOTHING) -> None:
    """Write an ``sbatch`` into a folder for ``PATH``."""
    folder.mkdir(exist_ok=True)
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
