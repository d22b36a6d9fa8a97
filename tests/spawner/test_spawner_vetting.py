"""Vetting before a server's start: the option, the command, and what the hub takes from the job."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.job import NodeProgress, VettingProgress
from gipfel_spawner.form.options import OptionError, UserOptions, read_form, read_options, read_presets
from gipfel_spawner.form.page import FieldError, FormContent, render_form
from gipfel_spawner.form.validation import check_vetting
from gipfel_spawner.start.progress import vetting_page, vetting_text
from gipfel_spawner.start.request import server_spec

_ROUTE = "/gipfel/server/vetting"


def command(**options: Any) -> tuple[str, ...]:
    chosen = UserOptions(**options)
    return server_spec(chosen, cluster="c", edf="", engine="host", runtime="", arguments=("--x",)).command


def test_the_server_is_the_same_command_after_a_vetting() -> None:
    server = ("-m", "gipfel_extension.singleuser", "--x")
    assert command() == ("{python}", "-I", *server)
    first = ("{python}", "-I", "-m", "gipfel_extension.vet_first")
    # By default, a server does not start on nodes that failed.
    assert command(vet="cpu") == (*first, "cpu", "abort", "--", *server)
    assert command(vet="cpu", vet_action="report") == (*first, "cpu", "report", "--", *server)
    several = command(vet="cpu", vet_action="shrink", nodes=2)
    assert several == (*first, "cpu", "shrink", "--", *server)


@pytest.mark.parametrize(
    "content",
    [
        {"vet": "--action=x"}, {"vet": "a b"}, {"vet": "../quick"}, {"vet": "quick\n"}, {"vet": "x" * 65},
        {"vet": 5}, {"vet_action": "exclude"}, {"vet_action": "Abort"}, {"vet_action": None},
        {"vet_action": "shrink"}, {"vet_action": "shrink", "nodes": 1},
    ],
)  # fmt: skip
def test_what_is_no_protocol_or_action_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="is not valid") as refused:
        read_options(content)
    assert refused.value.field == next(iter(content))


def test_of_several_nodes_those_that_are_not_fit_can_be_left_out() -> None:
    form = {"vet": ["cpu"], "vet_action": ["shrink"], "nodes": ["2"]}
    assert read_form(form) == UserOptions(vet="cpu", vet_action="shrink", nodes=2)
    with pytest.raises(OptionError, match="shrink needs several nodes") as refused:
        read_form({**form, "nodes": ["1"]})
    assert refused.value.field == "vet_action"
    with pytest.raises(OptionError, match="value for nodes") as refused:
        read_form({**form, "nodes": ["0"]})
    # The form says what would follow also where nothing is vetted.
    assert read_form({"vet": [""], "vet_action": ["abort"], "nodes": ["1"]}) == UserOptions()
    inherited = {"title": "Two", "nodes": 2, "vet": "cpu", "vet_action": "shrink"}
    (preset,), problems = read_presets([inherited, {**inherited, "nodes": 1}])
    assert preset.options.vet_action == "shrink"
    assert "Preset 2 is not valid" in problems[0]


def test_only_what_the_site_offers_is_run() -> None:
    options = read_form({"vet": ["cpu"], "vet_action": [""]})
    check_vetting(options, ("quick", "cpu"))
    with pytest.raises(OptionError, match=r"no vetting protocol cpu\. Pick one of quick"):
        check_vetting(options, ("quick",))
    with pytest.raises(OptionError, match="Leave the field empty"):
        check_vetting(options, ())
    check_vetting(UserOptions(), ())


def test_the_form_offers_the_sites_protocols_and_shows_what_was_chosen() -> None:
    chosen = UserOptions(vet="cpu", vet_action="abort")
    page = render_form(FormContent(cluster="c", vetting=("quick", "cpu"), initial=chosen))
    assert '<option value="cpu" selected>' in page
    assert '<option value="abort" selected>' in page
    assert "Vet the nodes first" in page
    assert 'name="vet"' not in render_form(FormContent(cluster="c"))
    odd = FormContent(cluster="c", vetting=("quick",), field_error=FieldError(field="vet", message="<no>"))
    page = render_form(odd)
    assert "&lt;no&gt;" in page
    assert 'id="gipfel-vet-error"' in page


def test_progress_is_told_node_by_node_and_escaped() -> None:
    rows = (
        NodeProgress(node="<i>n1", state="fail", detail="matmul: <script>"),
        NodeProgress(node="n2", state="running", detail="matmul runs"),
    )
    progress = VettingProgress(protocol="quick", nodes=20, done=3, bad=1, rows=rows)
    assert vetting_text(progress) == "Vetting by quick: 3 of 20 nodes done, 1 with a problem."
    page = vetting_page(progress)
    assert "<script>" not in page
    assert "<i>" not in page
    assert all(
        each in page
        for each in (
            "✗",
            "◐",
            "fail. matmul",
            '</strong> <span class="text-body-secondary">matmul runs',
            "and 18 more",
        )
    )


def test_the_hub_takes_progress_of_a_server_that_starts_and_of_no_other(hub: Any) -> None:
    hub.call("POST", "/users/vic")
    (hub.user_home("vic") / "behaviour").write_text("wait")
    assert hub.call("POST", "/users/vic/server", {"vet": "nothing"}).status == 400
    assert hub.call("POST", "/users/vic/server", {"gpus": 0}).status in {201, 202}
    path: Path = hub.user_home("vic") / "environment.json"
    until(lambda: path.exists() and path.read_text().endswith("}"), hub)
    token = str(json.loads(path.read_text())["JUPYTERHUB_API_TOKEN"])
    row = {"node": "n1", "state": "running", "detail": "matmul runs"}
    good = {"protocol": "cpu", "nodes": 1, "done": 0, "rows": [row]}
    for bad in (
        {}, [], {**good, "nodes": -1}, {**good, "user": "root"}, {**good, "rows": [{**row, "state": "on"}]},
        {**good, "rows": [row] * 17}, {**good, "rows": [{**row, "detail": "a\nb"}]},
        {**good, "outcome": "x" * 301}, {**good, "protocol": "x" * 65},
    ):  # fmt: skip
        assert hub.call("POST", _ROUTE, bad, token=token).status == 400, bad
    for other in (hub.token, "wrong", ""):
        assert hub.call("POST", _ROUTE, good, token=other).status == 403
    assert hub.call("POST", _ROUTE, good, token=token).status == 204
    hub.call("DELETE", "/users/vic/server")
    until(lambda: hub.server("vic") == {}, hub)
    assert hub.call("POST", _ROUTE, good, token=token).status == 403


def until(done: Any, hub: Any) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, hub.log()
        time.sleep(0.1)
