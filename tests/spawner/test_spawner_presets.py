"""Presets of a site, and batchspawner's configuration names."""

import asyncio
import json
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets.config import Config

from gipfel_cluster.engines.choice import available_engine_names
from gipfel_cluster.scheduler.notation import GpuCount
from gipfel_cluster.scheduler.protocol import Partition
from gipfel_cluster.scheduler.slurm import submit_arguments
from gipfel_spawner import EDFSpawner
from gipfel_spawner.form.options import UserOptions, describe_options, describe_time, read_presets
from gipfel_spawner.form.page import ClusterOffer, FormContent, preset_values, render_form
from gipfel_spawner.form.validation import limit_time
from gipfel_spawner.start.account import Account
from gipfel_spawner.start.placement import offered_engines
from gipfel_spawner.start.request import server_request, server_spec


def test_presets_are_options_with_a_title() -> None:
    presets, problems = read_presets(
        [
            {"title": "Explore", "edf": "pytorch", "gpus": 1, "time": "2:00:00"},
            {"title": "Tune", "description": "a whole node", "gpus": 4},
        ]
    )
    assert not problems
    assert presets[0].options == UserOptions(edf="pytorch", gpus=1, time="2:00:00")
    assert [each.text for each in presets] == ["1 GPU · 2 h · pytorch", "a whole node"]


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ({"gpus": 1}, "Preset 1 is not valid: title"),
        ({"title": "x" * 41}, "Preset 1 is not valid: title"),
        ({"title": "x", "cmd": "sh"}, "There is no option 'cmd'"),
        ({"title": "x", "gpus": -1}, "The value for GPUs is not valid"),
        ({"title": "x", "description": "a\nb"}, "description: "),
        ("Explore", "It is not a dictionary"),
    ],
)
def test_a_preset_that_cannot_be_is_one_line_and_the_others_stay(preset: Any, words: str) -> None:
    presets, problems = read_presets([preset, {"title": "good"}])
    assert [each.title for each in presets] == ["good"]
    (line,) = problems
    assert words in line
    assert "\n" not in line
    assert line.endswith("Tell the hub's administrators.")


def test_a_preset_fills_each_field_and_leaves_the_rest_to_the_site() -> None:
    content = FormContent(
        cluster="c", environments=("pytorch",), defaults=UserOptions(gpus=1, time="2:00:00", partition="gpu")
    )
    values = preset_values(UserOptions(edf="pytorch", nodes=2), content)
    assert values["edf"] == "pytorch"
    assert (values["gpus"], values["nodes"], values["time"], values["partition"]) == (
        "1",
        "2",
        "2:00:00",
        "gpu",
    )
    values = preset_values(UserOptions(edf="/opt/site.toml", gpus=0), content)
    assert (values["edf"], values["edf_path"], values["gpus"]) == ("", "/opt/site.toml", "0")


@pytest.mark.parametrize(
    ("known", "count", "unavailable"),
    [
        (True, 0, "needs 2 GPUs; this machine has none"),
        (True, 1, "needs 2 GPUs; this machine has 1"),
        (True, 2, ""),
        (False, 0, ""),
    ],
)
def test_a_preset_that_needs_more_gpus_than_there_are_is_disabled(
    known: bool, count: int, unavailable: str
) -> None:
    gpus = (GpuCount(count=count),) if count else ()
    machine = Partition(name="local", default=True, nodes=1, gpus=gpus, gpus_known=known)
    (preset,), _ = read_presets([{"title": "Pair", "gpus": 2}])
    content = FormContent(cluster="c", partitions=(machine,), presets=(preset,))
    page = render_form(content)
    assert (unavailable in page, " disabled>\n  <strong>Pair" in page) == (True, bool(unavailable))
    assert f'max="{count if known else 64}"' in page
    offer = ClusterOffer(name="c", partitions=(machine,))
    unknown = Partition(name="far", nodes=1)
    elsewhere = ClusterOffer(name="d", partitions=(unknown,))
    assert " disabled>" not in render_form(content.model_copy(update={"clusters": (offer, elsewhere)}))


def test_options_in_words() -> None:
    assert describe_options(UserOptions()) == "the defaults"
    assert describe_options(UserOptions(gpus=4, nodes=2, partition="debug")) == "4 GPUs · 2 nodes · debug"


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("30", "30 min"),
        ("2:00:00", "2 h"),
        ("1-12", "1 d 12 h"),
        ("1:30", "1 min 30 s"),
        ("UNLIMITED", "no time limit"),
        ("", ""),
    ],
)
def test_times_in_words(time: str, words: str) -> None:
    assert describe_time(time) == words


def spawner(**traits: Any) -> EDFSpawner:
    return EDFSpawner(config=Config({"EDFSpawner": traits}))


def test_a_local_server_of_the_hubs_own_user_runs_in_the_hubs_environment(tmp_path: Path) -> None:
    root = tmp_path / "runtime"
    (root / "bin").mkdir(parents=True)
    (root / "bin/python3").symlink_to(sys.executable)
    facts = {"prefix": str(root), "version": "1", "arch": platform.machine(), "key": "k", "distributions": {}}
    (root / "runtime.json").write_text(json.dumps(facts))
    ours = spawner(scheduler="local", runtime=str(root), state_folder=str(tmp_path))
    # A name without a unix user: on one's own machine the server runs as the hub does.
    ours.user = SimpleNamespace(name="not-a-unix-user-here")
    assert ours.placement.python() == sys.executable
    assert spawner(scheduler="local", python="/opt/python3").placement.python() == "/opt/python3"
    elsewhere = spawner(scheduler="slurm", runtime=str(root))
    assert elsewhere.placement.python() == f"{root}/bin/python3"


def submitted(chosen: UserOptions, **traits: Any) -> tuple[str, ...]:
    """The argv of ``sbatch`` under a configuration."""
    ours = spawner(**traits)
    defaults = ours.site_defaults()
    wanted = chosen.model_copy(
        update={
            "partition": chosen.partition or defaults.partition,
            "gpus": defaults.gpus if chosen.gpus is None else chosen.gpus,
        }
    )
    request = server_request(
        wanted,
        ours.site_options(limit_time(defaults.time, None), gpus=wanted.gpus or 0),
        server_spec(wanted, cluster="c", edf="", engine="host", runtime="", arguments=()),
        account=Account(home="/home/ada"),
        python="/p",
        environment={},
    )
    return (*submit_arguments(request), request.script)


#: Each of batchspawner's documented names that Slurm's template uses, a value, and what becomes of it.
NAMES = {
    "req_partition": ("normal", "--partition=normal"),
    "req_queue": ("normal", "--partition=normal"),
    "req_account": ("physics", "--account=physics"),
    "req_qos": ("long", "--qos=long"),
    "req_reservation": ("course", "--reservation=course"),
    "req_memory": ("64G", "--mem=64G"),
    "req_nprocs": ("8", "--cpus-per-task=8"),
    "req_ngpus": ("2", "--gres=gpu:2"),
    "req_gres": ("shard:4", "--gres=shard:4"),
    "req_runtime": ("3:00:00", "--time=3:00:00"),
    "req_constraint": ("a100&nvlink", "--constraint=a100&nvlink"),
    "req_options": ("--exclusive --licenses='a b'", "--exclusive"),
    "req_prologue": ("module load x", "module load x"),
    "req_epilogue": ("rm -rf /tmp/x", "rm -rf /tmp/x"),
}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_batchspawners_names_keep_working(name: str) -> None:
    value, expected = NAMES[name]
    argv = submitted(UserOptions(), **{name: value})
    assert expected in "\n".join(argv).split("\n"), argv
    plain = submitted(UserOptions())
    assert expected not in "\n".join(plain).split("\n")


def test_words_of_req_options_stay_words() -> None:
    assert "--licenses=a b" in submitted(UserOptions(), req_options="--exclusive --licenses='a b'")


@pytest.mark.parametrize(
    ("field", "name", "value", "expected"),
    [
        ("partition", "req_partition", "debug", "--partition=debug"),
        ("account", "req_account", "mine", "--account=mine"),
        ("qos", "req_qos", "short", "--qos=short"),
        ("reservation", "req_reservation", "lecture", "--reservation=lecture"),
        ("memory", "req_memory", "1G", "--mem=1G"),
        ("cpus", "req_nprocs", 3, "--cpus-per-task=3"),
        ("gpus", "req_ngpus", 1, "--gres=gpu:1"),
        ("time", "req_runtime", "10", "--time=10"),
    ],
)
def test_a_users_choice_wins_over_the_sites(field: str, name: str, value: Any, expected: str) -> None:
    site, of_site = NAMES[name]
    argv = submitted(UserOptions.model_validate({field: value}), **{name: site})
    assert expected in argv
    assert of_site not in argv


def test_every_trait_of_ours_says_what_it_is_for() -> None:
    inherited = EDFSpawner.__mro__[EDFSpawner.__mro__.index(_batchspawner()) :]
    known = {name for base in inherited for name in getattr(base, "_traits", {})}
    own = {name: trait for name, trait in EDFSpawner.class_traits(config=True).items() if name not in known}
    assert {"presets", "engines", "cpus_per_gpu", "memory_per_gpu", "req_constraint"} <= set(own)
    assert not [name for name, trait in own.items() if len(str(trait.help)) < 10]


def _batchspawner() -> type:
    from batchspawner import SlurmSpawner  # noqa: PLC0415

    kind: type = SlurmSpawner
    return kind


def test_engines_are_offered_that_can_run_where_jobs_run() -> None:
    here, problem = asyncio.run(offered_engines("bubblewrap", (), jobs_run_locally=True))
    assert here[0] == "bubblewrap"
    assert "host" not in here
    assert set(here[1:]) <= set(available_engine_names())
    assert bool(problem) == ("bubblewrap" not in available_engine_names())
    # Compute nodes can't be looked at: what the site says goes.
    assert asyncio.run(offered_engines("ce", ("podman",), jobs_run_locally=False)) == (("ce", "podman"), "")
    names, problem = asyncio.run(offered_engines("nonsense", ("host",), jobs_run_locally=True))
    assert names == ("nonsense",)
    assert problem.startswith("Environments with an image can't start on this machine: There is no engine")
