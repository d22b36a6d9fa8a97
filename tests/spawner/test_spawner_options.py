import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.notation import GpuCount
from gipfel_cluster.scheduler.protocol import Association, Choices, Partition, Reservation
from gipfel_cluster.scheduler.slurm import submit_arguments
from gipfel_spawner.form.options import (
    FIELDS,
    OptionError,
    Preset,
    UserOptions,
    read_form,
    read_options,
    read_query,
)
from gipfel_spawner.form.page import FieldError, FormContent, render_form
from gipfel_spawner.form.validation import add_per_gpu_defaults, check_choices, choose_partition, limit_time
from gipfel_spawner.start.account import Account
from gipfel_spawner.start.request import SiteOptions, server_request, server_spec, site_script

NORMAL = Partition(
    name="normal",
    default=True,
    time_limit_s=86400,
    gpus=(GpuCount(type="gh200", count=4),),
    nodes=8,
    idle_nodes=3,
)
DEBUG = Partition(name="debug", time_limit_s=1800, nodes=2, idle_nodes=2)


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


HOSTILE = st.one_of(
    st.sampled_from(
        [
            "a\n#SBATCH --uid=0",
            "a\r--wrap=id",
            "a\u2028b",
            "a\u2029b",
            "a\x85b",
            "a\x0bb",
            "a\x00b",
            "$(id)",
            "`id`",
            "a;id",
            "a b",
            "--uid=0",
            "-p",
            '"',
            "'",
            "a' --uid=0 '",
            "{python}",
            "{{ 7 * 7 }}",
            "%j",
            "٣",
            "x" * 1_000_000,
        ]
    ),
    st.text(),
)
ANY = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), HOSTILE, st.lists(st.text()))
PRINTABLE = re.compile(r"[^\x00-\x1f\x7f\x85\u2028\u2029]*")
FIXED = (
    "sbatch",
    "--parsable",
    "--export=ALL",
    "--chdir=/home/ada",
    "--output=/home/ada/.gipfel/logs/server-%j.log",
)
OWN = {
    "--job-name", "--nodes", "--gres", "--cpus-per-task", "--partition", "--account", "--qos",
    "--reservation", "--mem", "--time",
}  # fmt: skip


@given(st.dictionaries(st.one_of(st.sampled_from(sorted(FIELDS)), st.text(max_size=10)), ANY, max_size=5))
@settings(suppress_health_check=[HealthCheck.large_base_example, HealthCheck.data_too_large])
def test_no_option_adds_a_directive_an_argument_or_a_command(content: dict[str, Any]) -> None:
    for read in (read_options, lambda given: read_form({key: [value] for key, value in given.items()})):
        try:
            options = read(content)
        except GipfelError as error:
            problem = str(error)
        else:
            problem = ""
        if problem:
            assert len(problem.splitlines()) == 1
            assert len(problem) < 5000
            continue
        for value in options.model_dump().values():
            assert not str(value).startswith("-")
            assert PRINTABLE.fullmatch(str(value))
        spec = server_spec(options, cluster="c", edf=options.edf, engine="host", runtime="", arguments=())
        account = Account(user="ada", home="/home/ada")
        request = server_request(
            options, SiteOptions(), spec, account=account, python="/usr/bin/python3", environment={}
        )
        # The script is the same for everybody; what was chosen travels as JSON in one variable.
        assert request.script == "#!/bin/sh\nexec /usr/bin/python3 -I -m gipfel_cluster.job\n"
        assert set(request.environment) == {"GIPFEL_JOB"}
        argv = submit_arguments(request)
        others = [each for each in argv if each not in FIXED]
        assert all(each.partition("=")[0] in OWN for each in others), others
        assert len({each.partition("=")[0] for each in others}) == len(others)
        assert all(" " not in each for each in others), others


@pytest.mark.parametrize("field", sorted(set(FIELDS) - {"gpus", "nodes", "cpus"}))
@pytest.mark.parametrize(
    "value", ["a\nb", "a\x00b", "a\u2028b", "$(id)", "a;b", "-x", "a b", "x" * 1_000_000]
)
def test_every_text_field_refuses_what_is_no_name(field: str, value: str) -> None:
    for read in (read_options, lambda given: read_form({key: [each] for key, each in given.items()})):
        with pytest.raises(OptionError) as caught:
            read({field: value})
        assert caught.value.field in {field, ""}
        assert len(str(caught.value)) < 500


def test_the_sites_shell_stands_around_the_one_command() -> None:
    script = "#!/bin/sh\nexec /p -I -m gipfel_cluster.job\n"
    assert site_script(script) == script
    assert site_script(script, prologue="module load x") == (
        "#!/bin/sh\nmodule load x\nexec /p -I -m gipfel_cluster.job\n"
    )


@pytest.mark.parametrize("given_signal", [False, True])
def test_an_epilogue_runs_after_the_server_and_keeps_its_exit_status(
    tmp_path: Path, given_signal: bool
) -> None:
    body = "trap 'exit 7' TERM; sleep 60 & wait" if given_signal else "exit 7"
    (tmp_path / "server").write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / "server").chmod(0o755)
    script = site_script(
        f"#!/bin/sh\nexec {tmp_path}/server\n",
        prologue="echo before",
        epilogue=f"echo after > {tmp_path}/done",
    )
    job = subprocess.Popen(["/bin/sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert job.stdin
    job.stdin.write(script.encode())
    job.stdin.close()
    if given_signal:
        time.sleep(1)
        # As a scheduler does it: to every process of the job.
        os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(20) == 7
    assert (tmp_path / "done").read_text() == "after\n"


@pytest.mark.parametrize("edf", ["$HOME/x.toml", "~", "~ada/x.toml", "./x.toml", "a b", "x\n"])
def test_an_environment_is_a_name_or_a_path(edf: str) -> None:
    assert read_options({"edf": "~/x y.toml"}).edf == "~/x y.toml"
    with pytest.raises(GipfelError, match=r"a path that begins with / or ~/\.$|a line break"):
        read_options({"edf": edf})


@pytest.mark.parametrize("time", ["0", "0:00", "00:00:00", "0-0"])
def test_no_time_is_refused(time: str) -> None:
    with pytest.raises(GipfelError, match="must be longer than 0"):
        read_options({"time": time})


def test_options_are_short() -> None:
    with pytest.raises(GipfelError, match="too long"):
        read_options({"x" * 20_000: 1})


@pytest.mark.parametrize("path", ["/tmp/x.toml", "~/x.toml"])
def test_a_link_names_an_environment_but_brings_none(path: str) -> None:
    assert read_query({"edf": ["pytorch"], "gpus": ["1"]}) == UserOptions(edf="pytorch", gpus=1)
    with pytest.raises(GipfelError, match="A link can't name"):
        read_query({"edf": [path]})
    with pytest.raises(GipfelError, match="A link can't name"):
        read_query({"edf_path": [path]})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (UserOptions(partition="gone"), "no partition gone. Pick one of normal, debug"),
        (UserOptions(nodes=9), "has 8 nodes, 9 were requested"),
        (UserOptions(gpus=5), "has 4 GPUs, 5 were requested"),
        (UserOptions(time="2-0"), "allows 1-00:00:00, 2-0 was requested"),
        (UserOptions(time="UNLIMITED"), "UNLIMITED was requested"),
        (UserOptions(partition="debug", time="31"), "allows 00:30:00"),
        (UserOptions(partition="none", gpus=1), "This machine has no GPU, 1 was requested"),
    ],
)
def test_more_than_there_is(options: UserOptions, problem: str) -> None:
    without = Partition(name="none", nodes=1, gpus_known=True)
    with pytest.raises(GipfelError, match=problem):
        choose_partition(options, (NORMAL, DEBUG, without))
    # Of a partition whose GPUs are not known, the scheduler decides.
    assert choose_partition(UserOptions(partition="debug", gpus=1), (NORMAL, DEBUG, without)) == DEBUG


def test_the_default_time_fits_the_partition() -> None:
    assert choose_partition(UserOptions(), (DEBUG, NORMAL)) == NORMAL
    assert limit_time("2:00:00", NORMAL) == "2:00:00"
    assert limit_time("2:00:00", DEBUG) == "00:30:00"
    assert limit_time("", DEBUG) == ""
    assert limit_time("2:00:00", None) == "2:00:00"


CHOICES = Choices(
    associations=(
        Association(account="physics", qos=("normal", "long")),
        Association(account="course", partition="debug", qos=("short",)),
    ),
    default_account="physics",
    reservations=(Reservation(name="lecture"),),
)


@pytest.mark.parametrize(
    ("options", "field", "problem"),
    [
        (
            UserOptions(account="theirs"),
            "account",
            "You have no account theirs. Pick one of physics, course.",
        ),
        (
            UserOptions(account="physics", qos="short"),
            "qos",
            "You have no QoS short. Pick one of long, normal.",
        ),
        (UserOptions(account="course", qos="short", partition="normal"), "qos", "You have no QoS short."),
        (UserOptions(reservation="theirs"), "reservation", "You have no reservation theirs."),
        (UserOptions(engine="docker"), "engine", "You have no engine docker. Pick one of ce."),
    ],
)
def test_what_a_user_may_not_choose(options: UserOptions, field: str, problem: str) -> None:
    with pytest.raises(OptionError, match=problem) as caught:
        check_choices(options, CHOICES, engines=("ce",))
    assert caught.value.field == field


def test_what_a_user_may_choose() -> None:
    check_choices(
        UserOptions(account="course", qos="short", partition="debug", reservation="lecture", engine="ce"),
        CHOICES,
        engines=("ce",),
    )
    # A scheduler that does not say is asked at the submission; one that has no accounts offers none.
    check_choices(UserOptions(account="any"), None)
    with pytest.raises(OptionError, match="Leave the field empty"):
        check_choices(UserOptions(account="any"), Choices())


def test_a_share_for_each_gpu_where_the_user_named_none() -> None:
    shared = add_per_gpu_defaults(UserOptions(gpus=2), cpus_per_gpu=72, memory_per_gpu="96G")
    assert (shared.cpus, shared.memory) == (144, "196608M")
    named = UserOptions(gpus=2, cpus=3, memory="4G")
    assert add_per_gpu_defaults(named, cpus_per_gpu=72, memory_per_gpu="96G") == named
    assert add_per_gpu_defaults(UserOptions(gpus=0), cpus_per_gpu=72, memory_per_gpu="96G") == UserOptions(
        gpus=0
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (UserOptions(cpus=289), "has 288 CPUs, 289 were requested"),
        (UserOptions(memory="900G"), "has 870400 MiB of memory, 900G was requested"),
    ],
)
def test_more_than_a_node_has(options: UserOptions, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        choose_partition(options, (NORMAL.model_copy(update={"cpus": 288, "memory": 870400}),))


def test_the_form_escapes_everything_and_keeps_what_was_chosen() -> None:
    evil = '"><script>x</script>'
    page = render_form(
        FormContent(
            cluster=evil, environments=(evil, "good"), defaults=UserOptions.model_construct(edf=evil),
            problems=(evil,), partitions=(NORMAL.model_copy(update={"name": evil}), DEBUG),
            initial=UserOptions(edf="/a&b.toml", nodes=3, time="30", partition="debug"),
            presets=(Preset(title=evil, description=evil, options=UserOptions(edf="/'\"<b>.toml")),),
            choices=Choices(
                associations=(Association(account=evil, qos=(evil,)),), default_account=evil,
                reservations=(Reservation(name=evil),),
            ),
            engines=("a", evil), field_error=FieldError(field="time", message=evil), memory_per_gpu=evil,
            hub=evil, user=evil,
        )
    )  # fmt: skip
    assert "<script>x" not in page
    assert "<b>" not in page
    assert 'value="/a&amp;b.toml"' in page
    assert 'value="3"' in page
    assert re.search(r'value="debug"[^>]* selected', page)
    assert 'aria-errormessage="gipfel-time-error"' in page


def test_what_was_typed_comes_back_as_it_was_typed() -> None:
    page = render_form(FormContent(cluster="c", typed={"time": "<soon>", "gpus": "many", "cmd": "sh"}))
    assert 'value="&lt;soon&gt;"' in page
    assert 'value="many"' in page


def test_idle_gpus_are_counted_by_type_and_old_news_say_so() -> None:
    two = (GpuCount(type="a100", count=8), GpuCount(type="gh200", count=128))
    partition = NORMAL.model_copy(
        update={"total_gpus": two, "idle_gpus": (GpuCount(type="gh200", count=37),)}
    )
    page = render_form(FormContent(cluster="c", partitions=(partition,), age=200, problems=("Silent.",)))
    assert "0 of 8 a100 idle, 37 of 128 gh200 idle" in page
    assert "The information about partitions is 3 min old." in page


def test_without_a_choice_there_is_no_field() -> None:
    page = render_form(FormContent(cluster="c", partitions=(NORMAL,)))
    for field in ("account", "qos", "reservation", "engine"):
        assert f'name="{field}"' not in page
    page = render_form(FormContent(cluster="c", choices=CHOICES, engines=("ce", "podman")))
    for field in ("account", "qos", "reservation", "engine"):
        assert f'name="{field}"' in page


def test_a_form_without_an_answer_of_the_scheduler_still_works() -> None:
    page = render_form(FormContent(cluster="c", problems=("Slurm did not answer.",)))
    assert 'role="alert">Slurm did not answer.' in page
    assert '<input class="form-control" id="gipfel-partition" name="partition" type="text"' in page
