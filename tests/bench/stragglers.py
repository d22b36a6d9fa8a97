"""Rate of correctly named slow ranks, stages and nodes in simulated jobs with a known fault.

Read from the campaign ``stragglers`` where it was run on this machine, else a reduced sample: then a bound
holds where the interval does not contradict it. ``peer`` is a fixed threshold, 5 % above the peers' median.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "parts"))

from campaign_rows import main

_CELLS = (
    "healthy.64.noise-5.roles",
    "healthy.64.noise-5.no-roles",
    "slow-10.64.noise-5.roles",
    "slow-10.1024.noise-2.roles",
    "became-20.64.noise-2.no-roles",
    "node-20.64.noise-2.roles",
    "stage-20.64.noise-2.roles",
    "samples-20.64.noise-2.roles",
)

if __name__ == "__main__":
    sys.exit(main("stragglers", _CELLS, draws=12))
