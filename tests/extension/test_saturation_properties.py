"""Properties of the score that hold on random samples with nulls."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saturation_tables import H100, busy, gpu, host, table

from gipfel_extension.saturation import Settings, Weights, advise, document_of, score_table
from gipfel_extension.saturation.report.document import WIDTH, score_text
from gipfel_extension.saturation.result import integer_points
from gipfel_extension.telemetry.metric_table import GPU_METRICS, HOST_METRICS, SCORE_PARTS
from gipfel_extension.telemetry.sample import SampleTable

_EXTRA = {"CLOCKS_EVENT_REASONS": 255.0, "PIPE_INT_ACTIVE": 1.0}
_TOP_OF = {
    "1": 1.0, "B/s": 6e11, "B": 1e11, "J": 1e10, "W": 700.0, "°C": 95.0, "MHz": 2e3, "cores": 64.0,
    "bits": 255.0, "1/s": 1e6,
}  # fmt: skip
_TOPS = {metric: _TOP_OF[unit] for metric, unit in {**GPU_METRICS, **HOST_METRICS}.items()} | _EXTRA

# The recorder's parts of the score are read with the weights that the recorder has.
weights = st.just(Weights()) | st.builds(Weights, *[st.floats(0.0, 3.0) for _ in range(3)])


@st.composite
def tables(draw: st.DrawFn) -> SampleTable:
    """Up to four GPUs on up to two nodes, with holes of all kinds and a model that may be unknown."""
    seed, length = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 30))
    missing, quiet = draw(st.sampled_from((0.0, 0.2, 0.9))), draw(st.sampled_from((0.0, 0.5)))
    names = draw(st.lists(st.sampled_from((H100, "NVIDIA GH200 120GB", "?")), min_size=1, max_size=4))
    rng = np.random.default_rng(seed)

    def metric(top: float) -> list[float]:
        values = np.floor(top * rng.random(length)) if top == 255.0 else top * rng.random(length)
        values[rng.random(length) < quiet] = 0.0
        values[rng.random(length) < missing] = np.nan
        return values.tolist()

    series = {
        gpu(place, name=name, node=f"nid{place % 2}"): {
            m: metric(_TOPS[m]) for m in (*GPU_METRICS, *_EXTRA) if rng.random() > missing / 2
        }
        for place, name in enumerate(names)
    }
    if draw(st.booleans()):
        for values in series.values():
            values |= {part: metric(1.0) for part in SCORE_PARTS}
    hosts = {host(f"nid{place}"): {m: metric(_TOPS[m]) for m in HOST_METRICS} for place in range(2)}
    return table({**series, **hosts}, length=length, interval=draw(st.sampled_from((0.1, 1.0, 10.0))))


any_table = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@any_table
@given(found=tables(), chosen=weights)
def test_score_and_losses_are_parts_of_a_hundred(found, chosen):
    job = score_table(found, Settings(chosen))
    totals = [job.total, *(score.total for score in job.gpus)]
    for total in filter(None, totals):
        assert total.score + sum(total.losses.values()) == pytest.approx(100.0, abs=1e-6)
        assert 0.0 <= total.score <= 100.0 + 1e-9
        assert all(-1e-9 <= loss <= 100.0 + 1e-9 for loss in total.losses.values())
        assert sum(total.binding.values()) <= 1.0 + 1e-9
        assert sum(total.points.values()) == pytest.approx(total.score, abs=1e-6)
        assert total.bottleneck in {None, *total.points, *total.losses}
        assert total.lower_bound - 1e-9 <= total.score <= total.upper_bound + 1e-9
        assert sum(total.sequential_points.values()) <= total.upper_bound + 1e-6
    assert 0.0 <= job.confidence <= 1.0
    for trace in job.traces:
        whole = trace.levels.saturation + sum(trace.losses.values())
        assert np.isfinite(whole).sum() == trace.levels.known.sum()
        np.testing.assert_allclose(whole[trace.levels.known], 1.0, atol=1e-9)


@any_table
@given(found=tables(), seed=st.integers(0, 2**32 - 1))
def test_rows_without_a_value_change_the_confidence_and_not_the_score(found, seed):
    """Between the samples there come rows in which nothing could be read."""
    rng = np.random.default_rng(seed)
    columns = {}
    for device in found.devices:
        own = found[device.uuid]
        # Less than half an interval after a sample, so that it is the same beat.
        after = np.flatnonzero(rng.random(len(own["time_ns"])) < 0.5)
        times = own["time_ns"][after] + int(found.interval * 4e8)
        order = np.argsort(np.concatenate((own["time_ns"], times)), kind="stable")
        columns[device.uuid] = {
            name: np.concatenate((column, times if name == "time_ns" else np.full(len(times), np.nan)))[order]
            for name, column in own.items()
        }
        columns[device.uuid]["time_ns"] = columns[device.uuid]["time_ns"].astype(np.int64)
    hosts = {host.uuid: found[host.uuid] for host in found.hosts}
    before, after_ = score_table(found), score_table(replace(found, columns={**columns, **hosts}))
    for one, other in zip(before.gpus, after_.gpus, strict=True):
        assert (one.total is None) == (other.total is None)
        if one.total and other.total:
            assert other.total.score == pytest.approx(one.total.score, abs=1e-9)


@any_table
@given(lost=st.sets(st.integers(1, 18), min_size=1, max_size=17), tensor=st.floats(0.05, 1.0))
def test_a_missing_sample_lowers_the_confidence_alone(lost, tensor):
    steady = table({gpu(): busy(tensor=tensor), gpu(1): busy(tensor=tensor / 2)}, length=20)
    holes = table({gpu(): busy(tensor=tensor), gpu(1): busy(tensor=tensor / 2)}, length=20)
    for name, column in holes[gpu().uuid].items():
        if not name.endswith("_ns"):
            column[sorted(lost)] = np.nan
    rows = np.array([row for row in range(20) if row not in lost])
    gone = replace(
        steady,
        columns={uuid: {n: c[rows] for n, c in own.items()} for uuid, own in (steady.columns or {}).items()},
    )
    whole = score_table(steady)
    for thinned in (score_table(holes), score_table(gone)):
        assert thinned.total is not None
        assert whole.total is not None
        assert thinned.total.score == pytest.approx(whole.total.score)
        assert thinned.total.losses == pytest.approx(whole.total.losses)
        assert thinned.confidence < whole.confidence


@any_table
@given(found=tables())
def test_no_advice_without_its_evidence_in_the_table(found):
    job = score_table(found)
    for advice in advise(found, job):
        assert advice.evidence, advice.rule
        assert advice.sentence.endswith(".")
        assert advice.knob.link.startswith("https://")
        assert 0.0 <= advice.gain <= 100.0
        for shown in advice.evidence:
            own = found[shown.device]
            inside = (own["time_ns"] >= shown.start_ns) & (own["time_ns"] <= shown.end_ns)
            assert inside.any(), advice.rule
            assert shown.metrics, advice.rule
            assert all(np.isfinite(own[metric][inside]).any() for metric in shown.metrics), advice.rule


@any_table
@given(found=tables())
def test_the_terminals_lines_fit_and_the_document_is_json(found):
    job = score_table(found)
    advice = advise(found, job)
    lines = list(score_text(job, advice, label="x" * 200, environment="y" * 200))
    assert all(len(line) <= WIDTH for line in lines)
    document = document_of(job, advice)
    assert "NaN" not in repr(document)
    assert "nan" not in {repr(value) for value in document.values()}


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9).filter(lambda parts: sum(parts) > 0.01))
def test_whole_points_add_up(parts):
    share = {str(place): 100.0 * part / sum(parts) for place, part in enumerate(parts)}
    share["score"] = share.pop("0")
    whole = integer_points(share)
    assert whole["score"] == round(share["score"])
    assert sum(whole.values()) == 100
    assert all(abs(whole[name] - share[name]) < 1.0 for name in share)
