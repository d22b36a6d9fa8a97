"""Messages about jobs: the user's file, the services, the rate limit, and what hostile names can't do."""

import email
import email.policy
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from notify_servers import MailServer, Webhook, running, slack_settings, write_settings

from gipfel_cluster.model import GipfelError
from gipfel_cluster.notify import Event, Message, NotifySettings, message_of, read_settings
from gipfel_cluster.notify.channels import deliver, send_to_all
from gipfel_cluster.notify.journal import (
    HOUR_NS,
    Reporter,
    SendState,
    admit,
    read_events,
    read_state,
    state_directory,
)

SECRET = "T0PSECRET"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}


# ----- the file


def test_without_a_file_nothing_is_sent(environment: dict[str, str], tmp_path: Path) -> None:
    assert read_settings(environment) is None
    assert deliver(Event.of("failed", "x"), environment) == {}
    reporter = Reporter(environment)
    reporter.report(Event.of("failed", "x"))
    assert reporter.pids() == frozenset()
    # JupyterLab shows it nevertheless.
    assert [each.title for each in read_events(environment)] == ["x"]
    assert (tmp_path / ".gipfel").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_can_access_is_refused(
    environment: dict[str, str], tmp_path: Path, webhook: Webhook, mode: int
) -> None:
    path = write_settings(tmp_path, f'[slack]\nurl = "{webhook.url}/{SECRET}"\n', mode)
    with pytest.raises(GipfelError, match=f"mode {mode:04o}") as refused:
        read_settings(environment)
    assert refused.value.fix == f"Run: chmod 600 {path}"
    deliver(Event.of("failed", "x"), environment)
    assert webhook.received == []
    assert f"mode {mode:04o}" in read_state(environment).problem
    path.chmod(0o600)
    assert deliver(Event.of("failed", "x"), environment)["slack"].problem == ""
    assert read_state(environment).problem == ""


def test_a_link_or_a_pipe_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    path = write_settings(tmp_path, "")
    path.rename(tmp_path / "elsewhere.toml")
    path.symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(GipfelError, match="it is a symbolic link"):
        read_settings(environment)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(GipfelError, match="can't be read"):
        read_settings(environment)


@pytest.mark.parametrize(
    ("text", "line", "problem", "fix"),
    [
        ('hub = "https://h.example"\nevnts = []\n', 2, "there is no key evnts", "events"),
        ('[slack]\nurl = "https://h/x"\nchannel = "#a"\n', 3, "there is no key slack.channel", "Use url."),
        ('[email]\nhost = "h"\nfrom = "a@b.c"\nto = ["a@b.c"]\npasword = "x"\n', 5, "email.pasword", "from"),
        ('events = [\n  "failed",\n  "sometimes",\n]\n', 3, "events.1", "--help"),
        ('[ntfy]\nurl = "http://ntfy.example/t"\n', 2, "must begin with https://", "--help"),
        ('[ntfy]\nurl = "https://ntfy.example/"\n', 1, "must end with a topic", "--help"),
        ('[slack]\nurl = "https://me:T0PSECRET@h/x"\n', 2, "no user name", "--help"),
        ('[slack]\nurl = "https://h/T0PSECRET\\r\\nX: y"\n', 2, "must be a URL", "--help"),
        ('[slack]\nurl = "file:///etc/passwd"\n', 2, "must be a URL", "--help"),
        ('[slack]\nurl = "https://h:99999/x"\n', 2, "must be a URL", "--help"),
        ('[slack]\n\n', 1, "slack.url is missing", "--help"),
        ('[ntfy]\nurl = "https://h/t"\ntoken = "a\\nb"\n', 3, "no blanks", "--help"),
        ('[email]\nhost = "h"\nfrom = "a@b.c\\nBcc: x@y.z"\nto = ["a@b.c"]\n', 3, "must be an address", "-"),
        ('[email]\nhost = "h"\nfrom = "a@b.c"\nto = ["a@b.c"]\nsecurity = "none"\n', 1, "this machine", "-"),
        ("per_hour = 0\n", 1, "per_hour", "--help"),
        ("[slack\n", 1, "line 1", "--help"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_a_fix(
    environment: dict[str, str], tmp_path: Path, text: str, line: int, problem: str, fix: str
) -> None:
    write_settings(tmp_path, text)
    with pytest.raises(GipfelError) as refused:
        read_settings(environment)
    assert f"line {line}" in refused.value.problem
    assert problem in refused.value.problem
    assert fix in refused.value.fix
    assert SECRET not in str(refused.value)


def test_a_secret_is_not_in_the_settings_text() -> None:
    settings = slack_settings(f"https://hooks.slack.com/services/{SECRET}")
    assert SECRET not in f"{settings!r} {settings}"
    assert SECRET not in settings.model_dump_json()


# ----- messages

HOSTILE = (
    "train\n<!channel> @here <@U1> <http://evil|click> &amp; *x*\r\nBcc: a@b.c\r\n\r\n\u2028\x1b[31m.ipynb"
)


def test_a_message_has_the_reason_and_a_link() -> None:
    event = Event.of(
        "failed", "Batch notebook a.ipynb", "Cell 3: ValueError.", run="alps-1", workload="batch:1"
    )
    message = message_of(event, "https://hub.example/base/")
    assert message.title == "Batch notebook a.ipynb failed"
    assert message.body == "Cell 3: ValueError.\nIts output: gipfel logs 1"
    assert message.link == "https://hub.example/base/hub/user-redirect/gipfel/runs/alps-1/report"
    assert "gipfel report alps-1" in message_of(event).body


def test_a_hostile_name_is_one_line_of_bounded_length() -> None:
    event = Event.of("failed", HOSTILE * 20 + "\ud800", HOSTILE * 100, run="../x\n", workload="\x00")
    assert len(event.title) == 120
    assert len(event.reason) == 600
    assert "\n" not in message_of(event).title
    assert "/runs/..%2Fx/report" in message_of(event, "https://h").link
    assert Event.model_validate_json(event.model_dump_json()) == event


def test_slack_shows_a_hostile_name_as_text(
    webhook: Webhook, environment: dict[str, str], tmp_path: Path
) -> None:
    write_settings(tmp_path, f'[slack]\nurl = "{webhook.url}/services/{SECRET}"\n')
    event = Event.of("failed", f"Batch notebook {HOSTILE}", HOSTILE, run="alps-1")
    assert deliver(event, environment)["slack"].problem == ""
    [(path, headers, document)] = webhook.received
    assert path == f"/services/{SECRET}"
    assert headers["Content-Type"] == "application/json"
    assert "<" not in document["text"]
    assert "&lt;!channel&gt;" in document["text"]
    assert "@here" not in document["text"]
    assert document["mrkdwn"] is False
    assert document["link_names"] is False


def test_ntfy_gets_a_hostile_name_in_its_document_and_in_no_header(
    webhook: Webhook, environment: dict[str, str], tmp_path: Path
) -> None:
    write_settings(
        tmp_path,
        f'hub = "https://hub.example"\n[ntfy]\nurl = "{webhook.url}/my-topic"\ntoken = "tk_{SECRET}"\n',
    )
    deliver(Event.of("failed", HOSTILE, HOSTILE, run="alps-1"), environment)
    [(path, headers, document)] = webhook.received
    assert path == "/"
    assert document["topic"] == "my-topic"
    assert document["click"] == "https://hub.example/hub/user-redirect/gipfel/runs/alps-1/report"
    assert "\n" not in document["title"]
    assert headers["Authorization"] == f"Bearer tk_{SECRET}"
    assert set(headers) == {
        *("Accept-Encoding", "Authorization", "Connection", "Content-Length"),
        *("Content-Type", "Host", "User-Agent"),
    }


def test_a_mail_with_a_hostile_name_has_no_other_header_or_recipient(
    mail: MailServer, environment: dict[str, str], tmp_path: Path
) -> None:
    write_settings(
        tmp_path,
        f'[email]\nhost = "127.0.0.1"\nport = {mail.port}\nsecurity = "none"\n'
        'from = "gipfel@site.example"\nto = ["ada@site.example"]\n',
    )
    event = Event.of("failed", f"Batch notebook {HOSTILE} – ü", HOSTILE)  # noqa: RUF001
    assert deliver(event, environment)["email"].problem == ""
    assert mail.recipients == ["RCPT TO:<ada@site.example>"] or mail.recipients == [
        "rcpt TO:<ada@site.example>"
    ]
    parsed = email.message_from_bytes(mail.mails[0], policy=email.policy.default)
    assert "Bcc" not in parsed
    assert parsed["To"] == "ada@site.example"
    assert parsed["Subject"].startswith("[gipfel] Batch notebook train <!channel> @here")
    assert "ü" in parsed["Subject"]
    assert not parsed.is_multipart()
    assert parsed.get_content_type() == "text/plain"


def test_a_mail_server_that_refuses_is_named(
    mail: MailServer, environment: dict[str, str], tmp_path: Path
) -> None:
    mail.refuse = True
    text = (
        f'[email]\nhost = "127.0.0.1"\nport = {mail.port}\nfrom = "a@b.example"\nto = ["a@b.example"]\n'
        f'user = "ada"\npassword = "{SECRET}"\n'
    )
    write_settings(tmp_path, text + 'security = "none"\n')
    problem = deliver(Event.of("failed", "x"), environment)["email"].problem
    assert problem == "127.0.0.1 does not support what is set in security or user."
    # Without STARTTLS the password is not sent.
    write_settings(tmp_path, text)
    problem = deliver(Event.of("failed", "y"), environment)["email"].problem
    assert problem == "127.0.0.1 does not support what is set in security or user."
    write_settings(tmp_path, text.partition("user")[0] + 'security = "none"\n')
    problem = deliver(Event.of("failed", "z"), environment)["email"].problem
    assert problem == "127.0.0.1 refused the message (SMTP status 550)."
    assert mail.mails == []


# ----- services that fail


def test_a_redirect_is_not_followed(webhook: Webhook, environment: dict[str, str]) -> None:
    other = Webhook()
    with running(other):
        webhook.status, webhook.location = 307, f"{other.url}/stolen"
        outcome = send_to_all(
            slack_settings(f"{webhook.url}/{SECRET}"), Message(title="x", body=""), environment
        )
        assert "redirects (HTTP status 307)" in outcome["slack"].problem
        webhook.status = 302
        outcome = send_to_all(
            slack_settings(f"{webhook.url}/{SECRET}"), Message(title="x", body=""), environment
        )
        assert "redirects (HTTP status 302)" in outcome["slack"].problem
        assert other.received == []
    assert SECRET not in (state_directory(environment) / "state.json").read_text()


def test_a_service_that_does_not_respond_keeps_no_other_waiting(
    webhook: Webhook, environment: dict[str, str]
) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    settings = NotifySettings.model_validate(
        {
            "slack": {"url": f"http://127.0.0.1:{silent.getsockname()[1]}/{SECRET}"},
            "ntfy": {"url": f"{webhook.url}/topic"},
        }
    )
    began = time.monotonic()
    with silent:
        found = send_to_all(settings, Message(title="x", body=""), environment, limit_s=3)
    assert time.monotonic() - began < 12
    assert found["slack"].problem == "It did not respond in 3 s."
    assert found["ntfy"].problem == ""


def test_an_endless_response_is_not_read_to_its_end(webhook: Webhook, environment: dict[str, str]) -> None:
    webhook.drip_s = 60.0
    found = send_to_all(
        slack_settings(webhook.url + "/x"), Message(title="x", body=""), environment, limit_s=0.5
    )
    assert found["slack"].problem == "It did not respond in 0.5 s."


def test_a_server_that_is_not_there_is_named(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    found = send_to_all(
        slack_settings(f"http://127.0.0.1:{port}/{SECRET}"), Message(title="x", body=""), environment
    )
    assert found["slack"].problem == "127.0.0.1 can't be reached: Connection refused."


# ----- the rate limit


def test_the_limit_counts_an_hour_and_what_it_held_back() -> None:
    state = SendState()
    for number in range(5):
        state, admitted = admit(state, f"end:{number}", now_ns=10**18 + number, per_hour=3)
        assert admitted is (number < 3)
    assert state.held_back == 2
    state, admitted = admit(state, "end:5", now_ns=10**18 + HOUR_NS, per_hour=3)
    assert admitted
    assert state.held_back == 0


def test_the_same_message_is_not_sent_twice_in_an_hour() -> None:
    state, first = admit(SendState(), "idle:r", now_ns=10**18, per_hour=20)
    state, second = admit(state, "idle:r", now_ns=10**18 + HOUR_NS - 1, per_hour=20)
    _, third = admit(state, "idle:r", now_ns=10**18 + HOUR_NS, per_hour=20)
    assert (first, second, third) == (True, False, True)
    # A clock that was set back does not silence messages.
    _, after = admit(state, "idle:r", now_ns=10**18 - 1, per_hour=1)
    assert after


def test_the_limit_survives_restarts(webhook: Webhook, environment: dict[str, str], tmp_path: Path) -> None:
    write_settings(tmp_path, f'per_hour = 2\n[slack]\nurl = "{webhook.url}/x"\n')
    events = [Event.of("failed", f"Job {number}", run=f"r-{number}") for number in range(4)]
    for each in events[:2]:
        assert deliver(each, environment)
    done = subprocess.run(
        [sys.executable, "-I", "-m", "gipfel_cluster.notify"], input=events[2].model_dump_json(),
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == done.stderr == ""
    assert not deliver(events[3], environment)
    assert len(webhook.received) == 2
    assert read_state(environment).held_back == 2
    assert (state_directory(environment) / "state.json").stat().st_mode & 0o777 == 0o600


def test_jobs_that_end_together_send_no_more_than_the_limit(
    webhook: Webhook, environment: dict[str, str], tmp_path: Path
) -> None:
    write_settings(tmp_path, f'per_hour = 3\n[slack]\nurl = "{webhook.url}/x"\n')
    events = [Event.of("failed", f"Job {number}", run=f"r-{number}") for number in range(12)]
    threads = [threading.Thread(target=deliver, args=(each, environment)) for each in events]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(webhook.received) == 3
    assert read_state(environment).held_back == 9
    message = message_of(events[0], held_back=9)
    assert "held back 9 earlier messages" in message.body


def test_only_chosen_kinds_are_sent(webhook: Webhook, environment: dict[str, str], tmp_path: Path) -> None:
    write_settings(tmp_path, f'events = ["failed"]\n[slack]\nurl = "{webhook.url}/x"\n')
    deliver(Event.of("ended", "x"), environment)
    assert webhook.received == []
    deliver(Event.of("failed", "x"), environment)
    assert len(webhook.received) == 1


def test_a_damaged_state_is_begun_again(
    webhook: Webhook, environment: dict[str, str], tmp_path: Path
) -> None:
    write_settings(tmp_path, f'[slack]\nurl = "{webhook.url}/x"\n')
    folder = state_directory(environment)
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("[" * 10_000)
    (folder / "journal.jsonl").write_text("[" * 10_000 + "\n{}\n")
    Reporter(environment).report(Event.of("failed", "x"))
    assert [each.title for each in read_events(environment)] == ["x"]
    deliver(Event.of("failed", "x"), environment)
    assert read_state(environment).outcomes["slack"].problem == ""
