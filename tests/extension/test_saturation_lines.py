"""Text of the score in a terminal: the panel's first four lines, then advice and notes."""

from dataclasses import replace

from saturation_tables import busy, gpu, host, table

from gipfel_extension.saturation import advise, score_table
from gipfel_extension.saturation.advice.model import gain_in_points
from gipfel_extension.saturation.report.document import score_text


def lines(series: object, label: str = "alps-48812", environment: str = "", length: int = 10) -> list[str]:
    given = table(series, length=length)
    job = score_table(given)
    return list(score_text(job, advise(given, job), label=label, environment=environment))


def test_the_first_four_lines():
    parts = [0.8] * 6 + [0.0] * 4
    works = [1.0] * 6 + [0.0] * 4
    metrics = busy(tensor=parts, dram=0.0, active=works, engine=works)
    found = lines({gpu(): metrics, gpu(1): metrics, host(): {"CPU_CORES_USED": 9.0}}, environment="ngc-25.05")
    assert found[:4] == [
        "GIPFEL   nid1 · 2 \u00d7 H100 80GB HBM3 · ngc-25.05",
        "Saturation   alps-48812   10 s, a sample every 1 s, confidence 0.70",
        "  48  ┃███████████████·················┃ compute-bound 60 % of the time",
        "52 points lost: input 40 · unexplained 12",
    ]
    assert found[4].startswith("utilization 100 %")
    assert " ".join(found[5:7]).startswith("⚑ All GPUs waited for input 40 % of the time while its host used")


def test_a_long_name_is_whole_and_stands_on_a_line_of_its_own():
    name = "local-20261122T131415-123456789"
    found = lines({gpu(): busy()}, label=name)
    assert found[1] == f"Saturation   {name}"
    assert found[2].startswith("  10 s, a sample every 1 s")


def test_simulated_samples_are_called_so_whatever_gpu_they_play():
    assert lines({replace(gpu(), simulated=True): busy()})[0] == (
        "GIPFEL   nid1 · 1 \u00d7 H100 80GB HBM3 · simulated"
    )


def test_several_nodes_and_models():
    found = lines({gpu(): busy(), gpu(0, name="NVIDIA H200", node="nid2"): busy()})
    assert found[0] == "GIPFEL   2 nodes · 2 \u00d7 GPU"


def test_no_score_is_no_zero():
    found = lines({gpu(): {"GPU_UTIL": 1.0}})
    assert found[2].startswith("  --  ┃")
    assert "utilization alone" in " ".join(found)


def test_what_others_wrote_drives_no_terminal():
    evil = "a\x1b[31mb\nc\u2028d\u202ee"
    found = lines({gpu(0, name=evil, node=evil): busy()}, label=evil, environment=evil)
    assert all(line.isprintable() for line in found)


def test_a_gain_is_said_as_the_range_that_panel_and_report_show():
    """Half of the host's cores are free, so that twice the workers give something back at least."""
    parts = [0.8] * 4 + [0.0] * 6
    works = [1.0] * 4 + [0.0] * 6
    metrics = busy(tensor=parts, dram=0.0, active=works, engine=works)
    series = {gpu(): metrics, gpu(1): metrics, host(): {"CPU_CORES_USED": 9.0, "CPU_UTIL": 0.4}}
    given = table(series, length=10)
    job = score_table(given)
    advice = advise(given, job)
    (workers,) = [each for each in advice if each.rule == "loader-workers"]
    assert 1 <= workers.gain_least < workers.gain
    said = " ".join(score_text(job, advice, label="x"))
    text = " ".join(said.split())
    assert f"what delivers them. (+{workers.gain_least:.0f} to +{workers.gain:.0f} points (" in text
    assert all(each.gain_text in text for each in advice)
    assert all(
        (f"Or: {each.action}" in text) == each.alternative and (each.sentence in text) != each.alternative
        for each in advice
    )


def test_a_gain_whose_bounds_are_equal_is_one_number():
    assert gain_in_points(49.2, 48.9) == "+49 points (1.97\N{MULTIPLICATION SIGN} faster)"
    assert gain_in_points(49.2, 20.0).startswith("+20 to +49 points (1.25 to 1.97")
    assert gain_in_points(49.2).startswith("up to +49 points (\N{LESS-THAN OR EQUAL TO} 1.97")
