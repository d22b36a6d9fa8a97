"""The cards of the form: what is hidden because there is one choice, and the table of partitions."""

import re

from gipfel_cluster.job.service_orders import ServiceOffer
from gipfel_cluster.scheduler.notation import GpuCount
from gipfel_cluster.scheduler.protocol import Association, Choices, Partition, Reservation
from gipfel_spawner.form.options import UserOptions
from gipfel_spawner.form.page import ClusterOffer, FieldError, FormContent, partition_rows, render_form

_H200 = GpuCount(type="h200", count=4)
_ONE = Partition(name="local", nodes=1, idle_nodes=1, gpus_known=True)
_NORMAL = Partition(
    name="normal",
    default=True,
    nodes=8,
    idle_nodes=3,
    gpus=(_H200,),
    total_gpus=(GpuCount(type="h200", count=32),),
    idle_gpus=(GpuCount(type="h200", count=12),),
    time_limit_s=36 * 3600,
)


def hidden(page: str, field: str) -> bool:
    """Return whether the element around a field is hidden; the field itself must be there."""
    before = page[: page.index(f'for="gipfel-{field}"')]
    return bool(re.match(r'<div class="[^"]*" hidden>', before[before.rindex("<div") :]))


def test_a_field_with_one_choice_is_hidden_and_submitted() -> None:
    page = render_form(FormContent(cluster="c", partitions=(_ONE,)))
    assert hidden(page, "nodes")
    assert hidden(page, "partition")
    assert 'name="nodes"' in page
    assert 'name="partition"' in page
    assert not hidden(page, "gpus")


def test_a_field_with_a_choice_an_error_or_another_value_is_shown() -> None:
    several = render_form(FormContent(cluster="c", partitions=(_ONE, _NORMAL)))
    assert not hidden(several, "nodes")
    assert not hidden(several, "partition")
    mistake = FieldError(field="nodes", message="no")
    assert not hidden(render_form(FormContent(cluster="c", partitions=(_ONE,), field_error=mistake)), "nodes")
    two_nodes = FormContent(cluster="c", partitions=(_ONE,), initial=UserOptions(nodes=2))
    assert not hidden(render_form(two_nodes), "nodes")
    # Without an answer of the scheduler nothing is known, and so nothing is hidden.
    assert not hidden(render_form(FormContent(cluster="c")), "nodes")


def test_the_table_has_free_and_total_nodes_gpus_and_the_limit() -> None:
    (row,) = partition_rows((_NORMAL,))
    assert (row.nodes, row.gpus, row.limit) == ("3 of 8", "12 of 32 h200", "1 d 12 h")
    (row,) = partition_rows((_ONE,))
    assert (row.gpus, row.limit) == ("none", "")
    (row,) = partition_rows((Partition(name="odd"),))
    assert (row.nodes, row.gpus) == ("", "")


def test_partitions_of_several_clusters_keep_apart_and_names_are_escaped() -> None:
    odd = Partition(name='"><b>', nodes=2)
    offers = (ClusterOffer(name="alps", partitions=(_NORMAL,)), ClusterOffer(name="tiny", partitions=(odd,)))
    page = render_form(FormContent(cluster="alps", clusters=offers, partitions=(_NORMAL,)))
    assert 'data-cluster="alps" data-partition="normal"' in page
    assert 'data-cluster="tiny" data-partition="&#34;&gt;&lt;b&gt;"' in page
    assert "<b>" not in page


def _choices(*qos: str, accounts: tuple[str, ...] = ("g123",), default: str = "g123") -> Choices:
    found = tuple(Association(account=account, qos=qos) for account in accounts)
    return Choices(associations=found, default_account=default, reservations=(Reservation(name="maint"),))


def test_one_account_and_one_qos_are_hidden_and_named_for_the_line_beside_start() -> None:
    page = render_form(FormContent(cluster="c", partitions=(_NORMAL,), choices=_choices("normal")))
    assert hidden(page, "account")
    assert hidden(page, "qos")
    assert 'data-used="g123"' in page
    assert 'data-used="normal"' in page
    # A reservation can also be left out, so that one is a choice of two.
    assert not hidden(page, "reservation")


def test_accounts_and_qos_are_shown_where_there_is_a_choice_a_mistake_or_another_default() -> None:
    several = _choices("debug", "normal", accounts=("g123", "g124"))
    page = render_form(FormContent(cluster="c", choices=several))
    assert not hidden(page, "account")
    assert not hidden(page, "qos")
    assert page.count("data-used") == 1
    mistake = FieldError(field="account", message="no")
    page = render_form(FormContent(cluster="c", choices=_choices("normal"), field_error=mistake))
    assert not hidden(page, "account")
    other = _choices("normal", default="closed")
    assert not hidden(render_form(FormContent(cluster="c", choices=other)), "account")


def test_several_clusters_hide_what_each_has_one_of() -> None:
    offers = (
        ClusterOffer(name="alps", choices=_choices("normal")),
        ClusterOffer(name="tiny", choices=_choices("long", accounts=("x",), default="x")),
    )
    page = render_form(FormContent(cluster="alps", clusters=offers))
    assert hidden(page, "account")
    assert 'data-cluster="tiny" data-used="x"' in page
    two = (offers[0], ClusterOffer(name="tiny", choices=_choices("long", "short")))
    assert not hidden(render_form(FormContent(cluster="alps", clusters=two)), "qos")


def test_a_service_has_its_measured_numbers_or_says_that_there_are_none() -> None:
    known = ServiceOffer(name="ray", title="Ray", memory="650M", start_s=20)
    for offer, text in (
        (known, "Takes about 650M of memory. Starts in about 20 s."),
        (known.model_copy(update={"memory": ""}), "Starts in about 20 s."),
        (ServiceOffer(name="vllm", title="vLLM"), "Memory and start time: not measured."),
    ):
        page = render_form(FormContent(cluster="c", partitions=(_ONE,), services=(offer,)))
        assert re.search(rf"{re.escape(text)}\s+Costs no GPU per hour", page), text
        assert page.count("not measured") == (not offer.start_s)


def test_gpu_hours_used_and_left_are_above_start_where_there_are_gpus() -> None:
    lines = ("2 GPU hours used this month by your jobs", "3796 of 5000 GPU hours left in account <g123>")
    page = render_form(FormContent(cluster="c", partitions=(_NORMAL,), gpu_hours=lines))
    assert f"{lines[0]} · 3796 of 5000 GPU hours left in account &lt;g123&gt;" in page
    assert "GPU hours used" not in render_form(FormContent(cluster="c", partitions=(_ONE,), gpu_hours=lines))
