"""Fake Slurm commands of a machine without a cluster configuration."""

from pathlib import Path

#: Output of sbatch 24.11 without a configuration.
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
