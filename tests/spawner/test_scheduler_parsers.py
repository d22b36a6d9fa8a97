import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gipfel_cluster.scheduler.notation import (
    GpuCount,
    expand_hostlist,
    format_duration,
    parse_duration,
    parse_gpus,
)
from gipfel_cluster.scheduler.slurm_output import command_error, parse_address, parse_jobs
from gipfel_cluster.scheduler.slurm_site import parse_partitions


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("30:00", 1800),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("1-0", 86400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-00:00:01", 86401),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_time_limits_are_read_as_slurm_reads_them(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1h", "-1", "1:2:3:4", "1-", "1-1:1:1:1", "1.5", "٣", "1:00:00 --x", "٣:00"]
)
def test_invalid_time_limits(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid time limit"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**8))
def test_time_limits_round_trip(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("(null)", ()),
        ("", ()),
        ("gpu:4", (GpuCount(count=4),)),
        ("gpu", (GpuCount(count=1),)),
        ("gpu:gh200:4", (GpuCount(type="gh200", count=4),)),
        ("gpu:t:4(S:0-1)", (GpuCount(type="t", count=4),)),
        ("gpu:t:2(S:0,1),shard:8", (GpuCount(type="t", count=2),)),
        ("gpu:a:2,gpu:b:1", (GpuCount(type="a", count=2), GpuCount(type="b", count=1))),
        ("gpu:0", ()),
        ("craynetwork:4", ()),
    ],
)
def test_gpus_in_a_gres_list(text: str, gpus: tuple[GpuCount, ...]) -> None:
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n1,n2", ("n1", "n2")),
        ("nid[001-003,7]", ("nid001", "nid002", "nid003", "nid7")),
        ("a[1-2]b[3-4],c", ("a1b3", "a1b4", "a2b3", "a2b4", "c")),
        ("nid[008-011]", ("nid008", "nid009", "nid010", "nid011")),
    ],
)
def test_hostlists(text: str, nodes: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == nodes


@pytest.mark.parametrize(
    "text", ["n[1-", "n]", "n[3-1]", "n[a]", "n[]", "n[1-999999999]", "n[1-60000]m[1-60000]"]
)
def test_broken_hostlists(text: str) -> None:
    with pytest.raises(ValueError, match=r"hostlist|65536"):
        expand_hostlist(text)


@given(st.text(alphabet="an[]-,019", max_size=30))
def test_any_text_is_parsed_as_a_hostlist_in_bounded_time(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(expand_hostlist(text)) <= 65536


def test_jobs_of_squeue() -> None:
    output = (
        "1|FAILED|node01|2026-11-21T01:52:13|768|NonZeroExitCode|\n"
        "2|CANCELLED|node01|2026-11-21T01:52:13|15|None|\n"
        "3|PENDING||2026-11-21T03:52:00|0|Resources|\n"
        "4|RUNNING|node[01-02]|2026-11-21T01:52:13|0|None|\n"
        "5|PENDING||N/A|0|AssocGrpGRES|\n"
        "6|FROBNICATING||N/A|0|None|\n"
        "noise\n"
    )
    jobs = parse_jobs(output)
    assert (jobs["1"].answer, jobs["1"].exit_code, jobs["1"].reason) == ("ended", 3, "it ended with an error")
    assert jobs["2"].exit_code == 143
    assert (jobs["3"].answer, jobs["3"].state, jobs["3"].reason) == (
        "running",
        "PENDING",
        "no fitting nodes are free",
    )
    assert jobs["3"].expected_start.startswith("2026-11-21T03:52:00")
    assert (jobs["4"].nodes, jobs["4"].expected_start) == (("node01", "node02"), "")
    assert jobs["5"].reason == "everybody with this account together has as many GPUs as it allows"
    assert jobs["5"].expected_start == ""
    assert jobs["6"].answer == "unknown"


def test_partitions_of_sinfo() -> None:
    output = (
        "normal|normal*|1-00:00:00|up|2|idle|x\n"
        "normal|normal*|up|1-00:00:00|2|idle|gpu:gh200:4(S:0-3)\n"
        "normal|normal*|up|1-00:00:00|3|mixed|gpu:gh200:2\n"
        "normal|normal*|up|1-00:00:00|1|idle*|(null)\n"
        "debug|debug|up|infinite|1|idle~|(null)\n"
        "old|old|down|30:00|9|idle|(null)\n"
    )
    normal, debug = parse_partitions(output)
    assert (normal.name, normal.default, normal.time_limit_s) == ("normal", True, 86400)
    assert (normal.nodes, normal.idle_nodes, normal.gpus) == (6, 2, (GpuCount(type="gh200", count=4),))
    assert (debug.time_limit_s, debug.idle_nodes, debug.gpus) == (None, 1, ())


def test_the_address_of_a_node() -> None:
    assert parse_address("NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.3 NodeHostName=n1") == "10.0.0.3"
    assert parse_address("Node n9 not found") is None


def test_refusals_are_one_line_with_advice() -> None:
    error = command_error(
        "sbatch",
        "sbatch: error: invalid partition specified: nope\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified",
    )
    assert str(error) == (
        "Slurm refused (sbatch): Batch job submission failed: Invalid partition name specified. "
        "Pick another partition."
    )
    silent = command_error(
        "squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    )
    assert str(silent).startswith("Slurm did not answer (squeue")
    assert "\n" not in str(command_error("x", "a\r\n\x1b[31mb\x00c\n"))
