"""Times on the hub's pages: with the zone's name, and as elements that the browser's script finds."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gipfel_cluster.scheduler.protocol import JobStatus
from gipfel_spawner.start.progress import clock_text, describe_status, status_page, time_element

_NOW = datetime(2026, 11, 23, 14, 2, tzinfo=ZoneInfo("Europe/Zurich"))


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("2026-11-23T13:32:00+00:00", "14:32 CET"),
        ("2026-11-23T23:30:00+00:00", "2026-11-24 00:30 CET"),
        ("2026-07-01T12:00:00+00:00", "2026-07-01 14:00 CEST"),
        ("soon", "soon"),
        ("0001-01-01T00:00:00+05:00", "0001-01-01T00:00:00+05:00"),
        ("9999-12-31T23:59:59+00:00", "9999-12-31T23:59:59+00:00"),
    ],
)
def test_a_time_has_its_zone_and_a_date_only_if_it_is_another_day(time: str, text: str) -> None:
    assert clock_text(time, _NOW) == text


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_moment_outside_the_calendar_is_not_a_time(time: str) -> None:
    with pytest.raises(ValueError, match="years 1 to 9999"):
        time_element(time, "", "near")


def test_an_element_has_the_moment_with_its_offset_and_an_escaped_text() -> None:
    element = time_element("2026-11-23T13:32:00+00:00", "<b>", "near", css="gipfel-time")
    assert element.startswith('<time class="gipfel-local gipfel-time" datetime="')
    moment = element.partition('datetime="')[2].partition('"')[0]
    assert datetime.fromisoformat(moment) == datetime.fromisoformat("2026-11-23T14:32:00+01:00")
    assert element.endswith('data-show="near">&lt;b&gt;</time>')


def test_a_queued_jobs_expected_start_is_an_element_and_the_rest_is_escaped() -> None:
    status = JobStatus(
        answer="running", state="PENDING", reason="<i>", expected_start="2036-11-23T14:32:00", partition="p"
    )
    page = status_page(describe_status("7", status)[1], status)
    assert "&lt;i&gt;" in page
    assert 'expected start <time class="gipfel-local" datetime="2036-11-23T14:32:00' in page
    unknown = status.model_copy(update={"expected_start": "N/A <b>"})
    assert "expected start N/A &lt;b&gt;" in status_page(describe_status("7", unknown)[1], unknown)
