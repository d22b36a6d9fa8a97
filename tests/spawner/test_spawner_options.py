from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.gres import GpuCount
from gipfel_cluster.scheduler.protocol import Partition
from gipfel_spawner.form import FormContent, render_form
from gipfel_spawner.options import (
    UserOptions,
    choose_partition,
    read_form,
    read_options,
    read_query,
    time_within,
)

NORMAL = Partition(
    name="normal", default=True, seconds=86400, gpus=(GpuCount(type="gh200", count=4),), nodes=8, idle=3
)
DEBUG = Partition(name="debug", seconds=1800, nodes=2, idle=2)


def test_nothing_means_the_defaults() -> None:
    assert read_options({}) == read_form({}) == UserOptions()


def test_a_form_is_read() -> None:
    form = {
        "edf": ["a"],
        "edf_path": [" ~/x.toml "],
        "gpus": ["4"],
        "nodes": ["2"],
        "time": ["1-0"],
        "partition": [""],
    }
    assert read_form(form) == UserOptions(edf="~/x.toml", gpus=4, nodes=2, time="1-0")


@given(
    st.dictionaries(
        st.one_of(st.sampled_from(["edf", "partition", "gpus", "nodes", "time"]), st.text(max_size=10)),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text())),
        max_size=4,
    )
)
def test_whatever_comes_is_options_or_one_line(content: dict[str, Any]) -> None:
    for read in (read_options, lambda given: read_form({key: [value] for key, value in given.items()})):
        try:
            options = read(content)
        except GipfelError as error:
            problem: GipfelError | None = error
        else:
            problem = None
        if problem:
            assert len(str(problem).splitlines()) == 1
            continue
        for value in (options.edf, options.partition, options.time):
            assert len(value.splitlines()) <= 1
            assert not value.startswith("-")
            assert value.isprintable() or "\n" not in value


@pytest.mark.parametrize("edf", ["$HOME/x.toml", "~", "~ada/x.toml", "./x.toml", "a b", "x\n"])
def test_an_environment_is_a_name_or_a_path(edf: str) -> None:
    assert read_options({"edf": "~/x y.toml"}).edf == "~/x y.toml"
    with pytest.raises(GipfelError, match=r"a path that begins with / or ~/\.$|a line break"):
        read_options({"edf": edf})


@pytest.mark.parametrize("time", ["0", "0:00", "00:00:00", "0-0"])
def test_no_time_is_refused(time: str) -> None:
    with pytest.raises(GipfelError, match="needs more than no time"):
        read_options({"time": time})


def test_options_are_short() -> None:
    with pytest.raises(GipfelError, match="too long"):
        read_options({"x" * 20_000: 1})


@pytest.mark.parametrize("path", ["/tmp/x.toml", "~/x.toml"])
def test_a_link_names_an_environment_but_brings_none(path: str) -> None:
    assert read_query({"edf": ["pytorch"], "gpus": ["1"]}) == UserOptions(edf="pytorch", gpus=1)
    with pytest.raises(GipfelError, match="A link can't bring"):
        read_query({"edf": [path]})
    with pytest.raises(GipfelError, match="A link can't bring"):
        read_query({"edf_path": [path]})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (UserOptions(partition="gone"), "no partition gone. Pick one of normal, debug"),
        (UserOptions(nodes=9), "has 8 nodes, 9 were asked for"),
        (UserOptions(gpus=5), "has 4 GPUs, 5 were asked for"),
        (UserOptions(time="2-0"), "allows 1-00:00:00, 2-0 was asked for"),
        (UserOptions(time="UNLIMITED"), "UNLIMITED was asked for"),
        (UserOptions(partition="debug", time="31"), "allows 00:30:00"),
    ],
)
def test_more_than_there_is(options: UserOptions, problem: str) -> None:
    with pytest.raises(GipfelError, match=problem):
        choose_partition(options, (NORMAL, DEBUG))


def test_the_default_time_fits_the_partition() -> None:
    assert choose_partition(UserOptions(), (DEBUG, NORMAL)) == NORMAL
    assert time_within("2:00:00", NORMAL) == "2:00:00"
    assert time_within("2:00:00", DEBUG) == "00:30:00"
    assert time_within("", DEBUG) == ""
    assert time_within("2:00:00", None) == "2:00:00"


def test_the_form_escapes_everything_and_keeps_what_was_chosen() -> None:
    evil = '"><script>x</script>'
    page = render_form(
        FormContent(
            cluster=evil, environments=(evil, "good"), default_edf=evil, problems=(evil,),
            partitions=(NORMAL.model_copy(update={"name": evil}), DEBUG),
            chosen=UserOptions(edf="/a&b.toml", nodes=3, time="30", partition="debug"),
        )
    )  # fmt: skip
    assert "<script" not in page
    assert 'value="/a&amp;b.toml"' in page
    assert 'value="3"' in page
    assert 'value="debug" selected' in page


def test_a_form_without_an_answer_of_the_scheduler_still_works() -> None:
    page = render_form(FormContent(cluster="c", problems=("Slurm did not answer.",)))
    assert 'role="alert">Slurm did not answer.' in page
    assert '<input class="form-control" id="gipfel-partition"' in page
