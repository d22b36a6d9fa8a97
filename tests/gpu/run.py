"""Run this folder's tests without pytest, on a machine that has a GPU and little else."""

import importlib
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parents[1] / each) for each in ("extension", "spawner"))]


def main(wanted: str = "") -> int:
    """Run them all, or those of one file; 1 where one fails."""
    import machine  # noqa: PLC0415 - found through the path above

    reason = machine.missing()
    if reason:
        print(f"skipped, since it needs an NVIDIA GPU, its driver and torch: {reason}")
        return 0
    failed = 0
    for path in sorted(HERE.glob(f"{wanted or 'test_*'}.py")):
        module = importlib.import_module(path.stem)
        for name in [name for name in vars(module) if name.startswith("test_")]:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    getattr(module, name)(Path(folder))
                print(f"passed  {path.stem}::{name}", flush=True)
            except machine.Skipped as skipped:
                print(f"skipped {path.stem}::{name}: {skipped}", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED  {path.stem}::{name}", flush=True)
                traceback.print_exc(file=sys.stdout)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
