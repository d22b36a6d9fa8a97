"""The score on traces of known work that were recorded on real GPUs."""

import sys
from pathlib import Path

import pytest

from gipfel_extension.saturation import score_table
from gipfel_extension.telemetry.store.parquet import read_parquet

_TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(_TESTS / "gpu"))

from known_work import WORK  # noqa: E402 - found through the path above

_TRACES = sorted((_TESTS / "data" / "traces").glob("*.parquet"))
_NONE = pytest.param(None, marks=pytest.mark.skip(reason="no traces: make traces, on a machine with a GPU"))


@pytest.mark.parametrize("path", _TRACES or [_NONE], ids=lambda path: path.stem if path else "none")
def test_a_recorded_trace_is_scored_as_its_work_is_known(path: Path) -> None:
    name = next(name for name in WORK if path.stem.endswith(name))
    expected = WORK[name][1]
    table = read_parquet(path)
    assert "driver" in table.source
    total = score_table(table).total
    assert total is not None
    assert expected.least <= total.score <= expected.most
    assert total.score + sum(total.losses.values()) == pytest.approx(100, abs=0.1)
    if expected.binding:
        assert max(total.binding, key=lambda resource: total.binding[resource]) == expected.binding
    if expected.loss:
        assert max(total.losses, key=lambda loss: total.losses[loss]) == expected.loss
