"""Several clusters of one hub: their settings, the use of them at a start, and one that is lost."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gipfel_cluster.broker.hub import AllowedUsers
from gipfel_cluster.broker.hub_client import HubBrokerScheduler
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.protocol import JobRequest, LostJobError, Partition
from gipfel_cluster.scheduler.slurm_output import parse_daemon_users
from gipfel_spawner.cluster import (
    ClusterSettings,
    RemovedClusterScheduler,
    read_clusters,
    shared_cluster,
)
from gipfel_spawner.form.options import OptionError, UserOptions
from gipfel_spawner.form.page import ClusterOffer, FormContent, render_form
from gipfel_spawner.form.validation import assign_group_partition

ONLY = ClusterSettings(name="here", scheduler="slurm", engine="bubblewrap", runtime="/runtime")
PARTITIONS = tuple(Partition(name=name, default=name == "normal", nodes=2) for name in ("normal", "debug"))


def test_without_clusters_there_is_the_one_of_the_traits() -> None:
    assert read_clusters({}, ONLY) == {"here": ONLY}


def test_a_cluster_takes_from_the_traits_what_it_leaves_out() -> None:
    found = read_clusters({"alps": {"engine": "ce"}, "bristen": {"scheduler": "local"}}, ONLY)
    assert list(found) == ["alps", "bristen"]
    assert (found["alps"].engine, found["alps"].scheduler, found["alps"].runtime) == (
        "ce",
        "slurm",
        "/runtime",
    )
    assert found["bristen"].is_local


@pytest.mark.parametrize(
    "given",
    [
        {"a b": {}},
        {"": {}},
        {"a/b": {}},
        {"a": None},
        {"a": {"name": "b"}},
        {"a": {"command": "id"}},
        {"a": {"scheduler": "pbs"}},
        {"a": {"partitions": [""]}},
        {"a": {"partitions": ["--help"]}},
        {"a": {"environment": {"PATH": "a\nb"}}},
        {"a": {"scheduler": "broker"}},
        {"a": {"scheduler": "broker", "broker_socket": "relative"}},
    ],
)
def test_what_is_no_cluster_is_told_with_its_name(given: dict[str, Any]) -> None:
    with pytest.raises(GipfelError, match=r"EDFSpawner\.clusters: "):
        read_clusters(given, ONLY)


def test_a_name_among_the_settings_of_a_cluster_is_told_apart_from_no_dictionary() -> None:
    with pytest.raises(GipfelError, match=r"'a' have a 'name'\. .*key 'a' is the name"):
        read_clusters({"a": {"name": "b"}}, ONLY)


def test_a_group_has_its_own_partitions_only() -> None:
    normal, debug = PARTITIONS
    assert assign_group_partition(UserOptions(), normal, ()).partition == ""
    # Slurm would take its default partition, which may be none of the group's.
    assert assign_group_partition(UserOptions(), debug, ("debug",)).partition == "debug"
    assert assign_group_partition(UserOptions(), None, ("debug",)).partition == "debug"
    for chosen, options in ((normal, UserOptions()), (None, UserOptions(partition="normal"))):
        with pytest.raises(OptionError, match="Pick one of debug"):
            assign_group_partition(options, chosen, ("debug",))


def test_groups_of_one_cluster_share_its_queue_and_clusters_do_not(tmp_path: Path) -> None:
    given = {
        "all": {},
        "some": {"partitions": ["debug"]},
        "other": {"environment": {"SLURM_CONF": "/other/slurm.conf"}},
    }
    settings: dict[str, Any] = {}
    log = logging.getLogger("clusters")
    found = {
        name: shared_cluster(
            settings,
            site,
            is_only_cluster=False,
            state_folder=tmp_path,
            answer_limit=1,
            interval=1,
            calm_interval=1,
            log=log,
        )
        for name, site in read_clusters(given, ONLY).items()
    }
    assert found["all"].watcher is found["some"].watcher
    assert found["all"].watcher is not found["other"].watcher
    assert found["all"].cache is not found["some"].cache


def test_servers_of_a_cluster_that_is_configured_no_more_are_unknown_not_ended() -> None:
    gone = RemovedClusterScheduler("alps")
    assert {each.answer for each in asyncio.run(gone.query(["1", "2"])).values()} == {"unknown"}
    with pytest.raises(GipfelError, match="alps is no longer configured"):
        asyncio.run(gone.cancel("1"))


def content(**changes: Any) -> FormContent:
    offers = (
        ClusterOffer(name="alps", partitions=PARTITIONS, engines=("ce",)),
        ClusterOffer(name="bristen<", partitions=PARTITIONS[1:], engines=("ce", "podman")),
    )
    plain: dict[str, Any] = {"cluster": "alps", "partitions": PARTITIONS, "engines": ("ce",)}
    return FormContent.model_validate(plain | {"clusters": offers} | changes)


def test_the_form_groups_what_each_cluster_has() -> None:
    page = render_form(content())
    assert '<select class="form-select w-auto" id="gipfel-cluster" name="cluster">' in page
    assert page.count("<optgroup") == 3
    assert 'data-cluster="bristen&lt;"' in page
    assert '<option value="podman"' in page
    assert "bristen<" not in page


def test_one_cluster_is_a_word_and_no_choice() -> None:
    page = render_form(content(clusters=()))
    assert "<span>Cluster: alps</span>" in page
    assert "<optgroup" not in page
    assert 'name="cluster"' not in page


def test_a_broker_that_is_not_there_has_taken_no_job(tmp_path: Path) -> None:
    scheduler = HubBrokerScheduler(tmp_path / "none")
    request = JobRequest(name="t", script="#!/bin/sh\n", directory="/", mark="gipfel-mark")
    with pytest.raises(GipfelError, match="does not answer") as caught:
        asyncio.run(scheduler.submit(request))
    assert not isinstance(caught.value, LostJobError)
    assert asyncio.run(scheduler.query(["1"]))["1"].answer == "unknown"


def test_a_broker_that_goes_silent_may_have_taken_the_job(tmp_path: Path) -> None:
    request = JobRequest(name="t", script="#!/bin/sh\n", directory="/", mark="gipfel-mark", user="ada")

    async def run() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.close()

        async with await asyncio.start_unix_server(hang_up, tmp_path / "hub", limit=1 << 20):
            await HubBrokerScheduler(tmp_path / "hub").submit(request)

    with pytest.raises(LostJobError) as caught:
        asyncio.run(run())
    assert (caught.value.mark, caught.value.user) == ("gipfel-mark", "ada")


class _Entry(NamedTuple):
    pw_uid: int


def test_the_broker_acts_as_people_only(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {
        "root": 0,
        "daemon": 1,
        "ada": 1000,
        "grace": 60000,
        "slurm": 64030,
        "nobody": 65534,
        "ops": 1001,
    }
    monkeypatch.setattr("pwd.getpwnam", lambda name: _Entry(users[name]))
    monkeypatch.setattr("os.getuid", lambda: 0)

    def accepted(allowed: AllowedUsers) -> set[str]:
        found = set()
        for name in (*users, "no-such-user", ""):
            with suppress(GipfelError):
                found.add(allowed.check(name, schedulers={"ops", "gone"}))
        return found

    assert accepted(AllowedUsers()) == {"ada", "grace"}
    assert accepted(AllowedUsers(min_uid=0, max_uid=4_000_000_000)) == {"daemon", "ada", "grace", "slurm"}


def test_slurms_own_users_are_read_from_its_configuration() -> None:
    shown = "Configuration data as of x\nSlurmUser               = slurm(64030)\nSlurmdUser  = root(0)\n"
    assert parse_daemon_users(shown) == {"slurm", "root"}
    with pytest.raises(GipfelError, match="does not report the user"):
        parse_daemon_users("Slurm is silent")
