"""Prometheus text: DCGM exporter's names, units and labels; unknown ones are ignored."""

import re
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from saturation_tables import busy, gpu, host, table

from gipfel_extension.saturation import advise, document_of, score_table
from gipfel_extension.telemetry.imports import open_recording
from gipfel_extension.telemetry.prometheus_text import prometheus_text
from gipfel_extension.telemetry.sample import Device

LABELS = {"run": "alps-48812", "cluster": "alps", "job_id": "48812"}


def recorded():
    metrics = busy(tensor=0.8, dram=0.25, FB_USED=2.0 * 2**30, POWER_USAGE=512.5, NVLINK_TX_BYTES=45e9)
    return table({gpu(): {**metrics, "GPU_UTIL": 0.5}, host(): {"CPU_UTIL": 0.25}}, length=20)


def text(found, document=None, late_s: float = 1.0) -> str:
    return prometheus_text(found, document, **LABELS, now_ns=(found.last_ns or 0) + int(late_s * 1e9))


def value(line: str) -> float:
    return float(line.rpartition(" ")[2])


def lines(content: str, name: str) -> list[str]:
    return [line for line in content.splitlines() if line.startswith(name + "{")]


def test_names_units_and_labels_are_the_exporters():
    found = recorded()
    job = score_table(found)
    content = text(found, document_of(job, advise(found, job)))
    (util,) = lines(content, "DCGM_FI_DEV_GPU_UTIL")
    assert value(util) == 50
    labels = dict(re.findall(r'(\w+)="([^"]*)"', util))
    assert labels["UUID"] == gpu().uuid
    assert labels["modelName"] == gpu().name
    assert (labels["gpu"], labels["device"], labels["Hostname"]) == ("0", "nvidia0", gpu().node)
    assert (labels["hpc_job"], labels["cluster"]) == ("48812", "alps")
    assert value(lines(content, "DCGM_FI_DEV_FB_USED")[0]) == 2048
    assert value(lines(content, "DCGM_FI_DEV_POWER_USAGE")[0]) == 512.5
    assert value(lines(content, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")[0]) == 0.8
    assert value(lines(content, "DCGM_FI_PROF_NVLINK_TX_BYTES")[0]) == 4.5e10
    assert value(lines(content, "gipfel_host_cpu_util")[0]) == 0.25
    assert value(lines(content, "gipfel_saturation_score")[0]) == round(job.total.score, 4)
    losses = [value(line) for line in lines(content, "gipfel_saturation_loss")]
    assert abs(sum(losses) + job.total.score - 100.0) < 0.1
    # Every family is declared once, before its lines.
    declared = re.findall(r"^# TYPE (\w+) gauge$", content, re.M)
    assert len(declared) == len(set(declared))
    assert {line.partition("{")[0] for line in content.splitlines() if line[0] != "#"} == set(declared)


def test_it_reads_back_as_the_exporters_text(tmp_path):
    found = recorded()
    (tmp_path / "scrape.txt").write_text(text(found))
    again = open_recording(tmp_path / "scrape.txt").table
    (device,) = again.gpus
    assert (device.uuid, device.name, device.node) == (gpu().uuid, gpu().name, gpu().node)
    for metric in ("GPU_UTIL", "FB_USED", "PIPE_TENSOR_ACTIVE", "NVLINK_TX_BYTES"):
        np.testing.assert_allclose(again[device.uuid][metric], found[device.uuid][metric][-1:])


def test_what_is_missing_old_or_simulated_has_no_line():
    found = recorded()
    found[gpu().uuid]["DRAM_ACTIVE"][-1] = np.nan
    assert not lines(text(found), "DCGM_FI_PROF_DRAM_ACTIVE")
    assert not lines(text(found), "DCGM_FI_PROF_C2C_TX_ALL_BYTES")
    assert text(found, late_s=3600) == ""
    made_up = replace(gpu(1), simulated=True)
    with_both = table({gpu(): busy(), made_up: busy()}, length=3)
    assert made_up.uuid not in text(with_both, document_of(score_table(with_both)))
    assert text(table({}, length=0)) == ""


@given(name=st.text(max_size=30))
def test_no_name_breaks_a_line(name):
    device = Device("GPU-1", "gpu", name, 0, node=name)
    content = text(table({device: {"GPU_UTIL": 1.0}}, length=2))
    (line,) = [each for each in content.split("\n") if each.startswith("DCGM_FI_DEV_GPU_UTIL{")]
    assert re.fullmatch(r'\w+\{(\w+="([^"\\]|\\.)*",?)*\} 100\.0', line, re.S)
