"""Detection and false-alarm rates of changes in a run's pace, and of differences between runs.

Read from the campaign ``changes`` where it was run on this machine, else a reduced sample: then a bound holds
where the interval does not contradict it. ``peer`` is one line, ten steps a tenth above the first fifty.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "parts"))

from campaign_rows import main

_CELLS = (
    "within.+0.noise-2.400",
    "within.+0.noise-10.400",
    "within.+10.noise-2.400",
    "within.+10.noise-5.400",
    "runs.+0.apart-1.earlier-1",
    "runs.+10.apart-1.earlier-5",
)

if __name__ == "__main__":
    sys.exit(main("changes", _CELLS, draws=40))
