"""Delivery of messages when services or disks fail: one retry, no second copy, a journal and its reporter."""

import contextlib
import email
import email.policy
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from notify_servers import MailServer, Webhook, slack_settings, write_settings

from gipfel_cluster.model import GipfelError
from gipfel_cluster.notify import KINDS, Event, JobKind, Message, NotifySettings, read_settings
from gipfel_cluster.notify.channels import deliver, send_to_all
from gipfel_cluster.notify.journal import (
    Outcome,
    Reporter,
    SendState,
    append_event,
    hold_lock,
    locked_state,
    read_events,
    read_state,
    state_directory,
)

SECRET = "T0PSECRET"
MESSAGE = Message(title="x", body="y")


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gipfel_cluster.notify.channels.RETRY_S", 0.05)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}


def _email(port: int, **more: object) -> NotifySettings:
    values = {"host": "127.0.0.1", "port": port, "security": "none", "from": "a@b.example", **more}
    return NotifySettings.model_validate({"email": {"to": ["a@b.example", "c@d.example"], **values}})


# ----- retries


@pytest.mark.parametrize(("status", "requests"), [(503, 2), (429, 2), (500, 1), (502, 1), (404, 1), (200, 1)])
def test_only_what_was_certainly_not_accepted_is_sent_again_and_once(
    webhook: Webhook, environment: dict[str, str], status: int, requests: int
) -> None:
    webhook.status = status
    send_to_all(slack_settings(f"{webhook.url}/x"), MESSAGE, environment)
    assert len(webhook.received) == requests


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_event_reaches_slack_ntfy_and_mail_with_its_reason_and_link(
    kind: JobKind, webhook: Webhook, mail: MailServer, environment: dict[str, str], tmp_path: Path
) -> None:
    write_settings(
        tmp_path,
        f'hub = "https://hub.example"\n[slack]\nurl = "{webhook.url}/hook"\n'
        f'[ntfy]\nurl = "{webhook.url}/topic"\n[email]\nhost = "127.0.0.1"\nport = {mail.port}\n'
        'security = "none"\nfrom = "a@b.example"\nto = ["c@d.example"]\n',
    )
    outcomes = deliver(Event.of(kind, "train 7", "Node n1 says why.", run="alps-1"), environment)
    assert {name: each.problem for name, each in outcomes.items()} == dict.fromkeys(
        ("slack", "ntfy", "email"), ""
    )
    parsed = email.message_from_bytes(mail.mails[0], policy=email.policy.default)
    letter = f"{parsed['Subject']}\n{parsed.get_content()}"
    for text in (*(json.dumps(document) for _, _, document in webhook.received), letter):
        assert "train 7" in text
        assert "Node n1 says why." in text
        assert "/gipfel/runs/alps-1/report" in text
    assert len(webhook.received) == 2


def test_a_service_that_is_back_gets_the_message(webhook: Webhook, environment: dict[str, str]) -> None:
    webhook.status, webhook.next_status = 503, 200
    assert send_to_all(slack_settings(f"{webhook.url}/x"), MESSAGE, environment)["slack"].problem == ""
    assert len(webhook.received) == 2


def test_a_temporary_refusal_of_a_mail_server_is_tried_again(
    mail: MailServer, environment: dict[str, str]
) -> None:
    mail.refusals = [b"451 greylisted"]
    assert send_to_all(_email(mail.port), MESSAGE, environment)["email"].problem == ""
    assert len(mail.mails) == 1
    mail.refusals = [b"550 no", b"550 no"]
    found = send_to_all(_email(mail.port), MESSAGE, environment)["email"].problem
    assert found == "127.0.0.1 refused the message (SMTP status 550)."
    assert mail.refusals == [b"550 no"]


def test_no_retry_begins_after_the_time_for_a_message(webhook: Webhook, environment: dict[str, str]) -> None:
    webhook.status = 503
    send_to_all(slack_settings(f"{webhook.url}/x"), MESSAGE, environment, limit_s=0.04)
    time.sleep(0.3)
    assert len(webhook.received) == 1


# ----- mail servers


@pytest.mark.parametrize("farewell", [b"421 go away", b"", None])
def test_a_mail_that_was_accepted_stays_accepted_whatever_follows(
    mail: MailServer, environment: dict[str, str], farewell: bytes | None
) -> None:
    mail.farewell = farewell
    began = time.monotonic()
    assert send_to_all(_email(mail.port), MESSAGE, environment)["email"].problem == ""
    assert time.monotonic() - began < 5
    assert len(mail.mails) == 1


def test_a_recipient_that_is_refused_is_reported(mail: MailServer, environment: dict[str, str]) -> None:
    mail.unknown = b"c@d.example"
    found = send_to_all(_email(mail.port), MESSAGE, environment)["email"].problem
    assert found == "127.0.0.1 refused 1 of 2 recipients."
    assert len(mail.mails) == 1


def test_a_mail_server_without_a_valid_certificate_gets_neither_password_nor_mail(
    environment: dict[str, str], tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    received: list[bytes] = []

    def serve() -> None:
        with server, server.accept()[0] as connection:
            try:
                with context.wrap_socket(connection, server_side=True) as encrypted:
                    received.append(encrypted.recv(100))
            except OSError:
                received.append(b"")

    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    settings = _email(server.getsockname()[1], security="tls", user="ada", password="T0PSECRET")
    problem = send_to_all(settings, MESSAGE, environment)["email"].problem
    thread.join(20)
    assert problem.startswith("The certificate of 127.0.0.1 is not valid: self-signed")
    assert received == [b""]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ('user = "ada"\n', "user and password must be given together"),
        ('password = "T0PSECRET"\n', "user and password must be given together"),
        ('user = "ada"\npassword = "T0PSECRETü"\n', "only ASCII characters"),
        ('user = "ada\\r\\nRCPT"\npassword = "T0PSECRET"\n', "only ASCII characters"),
    ],
)
def test_a_login_that_cannot_work_is_refused(
    environment: dict[str, str], tmp_path: Path, more: str, problem: str
) -> None:
    write_settings(tmp_path, '[email]\nhost = "h"\nfrom = "a@b.c"\nto = ["a@b.c"]\n' + more)
    with pytest.raises(GipfelError, match=problem) as refused:
        read_settings(environment)
    assert "T0PSECRET" not in str(refused.value)


# ----- a service with an endless response


def test_an_endless_response_takes_neither_the_memory_nor_the_time_of_a_job(
    environment: dict[str, str], tmp_path: Path
) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        line = b"250-" + b"x" * 8000 + b"\r\n"
        try:
            while True:
                connection.sendall(line * 100)
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    write_settings(
        tmp_path,
        f'[email]\nhost = "127.0.0.1"\nport = {server.getsockname()[1]}\nsecurity = "none"\n'
        'from = "a@b.c"\nto = ["a@b.c"]\n',
    )
    code = (
        "import resource, sys; from gipfel_cluster.notify.__main__ import main; main();"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    began = time.monotonic()
    with server:
        done = subprocess.run(
            [sys.executable, "-c", code], input=Event.of("failed", "x").model_dump_json(), env=environment,
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    assert time.monotonic() - began < 60
    assert int(done.stdout) < 2100
    assert read_state(environment).outcomes["email"].problem


# ----- full disks and damaged files


def test_a_full_disk_does_not_silence_messages_or_their_limit(webhook: Webhook, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=64k", "gipfel-test", str(home)]
    if os.geteuid() or subprocess.run(argv, check=False, capture_output=True).returncode:
        pytest.skip("Nothing can be mounted here.")
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    try:
        write_settings(home, f'per_hour = 3\n[slack]\nurl = "{webhook.url}/x"\n')
        send_to_all(slack_settings(f"{webhook.url}/x"), MESSAGE, environment)
        with (home / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert os.statvfs(home).f_bavail == 0
        reporter = Reporter(environment)
        for number in range(5):
            event = Event.of("failed", f"Job {number}", run=f"r-{number}")
            reporter.report(event)
            reporter.report(event)
        reporter.finish(60)
        assert len(webhook.received) == 4
        assert read_state(environment).held_back == 2
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def test_a_line_that_was_cut_spoils_no_later_one(environment: dict[str, str]) -> None:
    append_event(Event.of("failed", "first"), environment)
    path = state_directory(environment) / "journal.jsonl"
    with path.open("a") as file:
        file.write('{"kind": "fai')
    append_event(Event.of("failed", "second"), environment)
    assert [each.title for each in read_events(environment)] == ["first", "second"]


@pytest.mark.parametrize("mark", ["\x1b[2J", "\x9b31m", "\u202e", "\u2066", "\n", "\x00"])
def test_text_that_would_change_a_terminal_is_not_read_from_the_files(
    environment: dict[str, str], mark: str
) -> None:
    state = SendState(outcomes={"slack": Outcome(time_ns=1, problem="fine")})
    with locked_state(environment) as (_, write):
        write(state)
    assert read_state(environment) == state
    document = json.loads(state.model_dump_json())
    document["outcomes"]["slack"]["problem"] = f"evil{mark}"
    (state_directory(environment) / "state.json").write_text(json.dumps(document))
    assert read_state(environment) == SendState()
    good = json.loads(Event.of("failed", "x").model_dump_json())
    (state_directory(environment) / "journal.jsonl").write_text(
        "\n".join(json.dumps(each) for each in (good, {**good, "title": f"evil{mark}"})) + "\n"
    )
    assert [each.title for each in read_events(environment)] == ["x"]
    assert mark not in Event.of("failed", f"a{mark}b", f"a{mark}b", run=f"a{mark}b").model_dump_json()


def test_a_hub_may_be_without_encryption_since_nothing_is_sent_there(
    webhook: Webhook, environment: dict[str, str], tmp_path: Path
) -> None:
    write_settings(tmp_path, f'hub = "http://hub.site.example/jupyter"\n[slack]\nurl = "{webhook.url}/x"\n')
    deliver(Event.of("failed", "x", run="alps-1"), environment)
    link = "http://hub.site.example/jupyter/hub/user-redirect/gipfel/runs/alps-1/report"
    assert webhook.received[0][2]["text"].endswith(link)


def test_the_journal_stays_small_and_has_each_end_once(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gipfel_cluster.notify.journal._MAX_BYTES", 10_000)
    monkeypatch.setattr("gipfel_cluster.notify.journal._KEPT_BYTES", 4_000)
    for number in range(40):
        assert append_event(Event.of("failed", f"{number}", "r" * 600, run=f"r-{number}"), environment)
    assert not append_event(Event.of("ended", "again", run="r-39"), environment)
    assert (state_directory(environment) / "journal.jsonl").stat().st_size < 12_000
    found = read_events(environment)
    assert found[-1].title == "39"
    assert len(read_events(environment, since_ns=found[-2].time_ns)) == 1


def test_a_reporter_sends_in_a_process_of_its_own(
    webhook: Webhook, environment: dict[str, str], tmp_path: Path
) -> None:
    write_settings(tmp_path, f'[slack]\nurl = "{webhook.url}/x"\n')
    reporter = Reporter({**environment, "JUPYTERHUB_API_TOKEN": SECRET})
    began = time.monotonic()
    reporter.report(Event.of("failed", "x", run="r-1"))
    assert time.monotonic() - began < 2
    [pid] = reporter.pids()
    assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    reporter.finish(30)
    assert [json.dumps(each[2])[:15] for each in webhook.received] == ['{"text": "x fai']
    assert reporter.pids() == frozenset()


def test_a_reporter_gives_a_hanging_service_up(environment: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_settings(tmp_path, f'[slack]\nurl = "http://127.0.0.1:{silent.getsockname()[1]}/x"\n')
        reporter = Reporter(environment)
        reporter.report(Event.of("failed", "x"))
        began = time.monotonic()
        reporter.finish(0.2)
        assert time.monotonic() - began < 2


def test_a_held_lock_sends_nothing_and_raises_in_no_job(
    webhook: Webhook, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gipfel_cluster.notify.journal._LOCK_S", 0.1)
    write_settings(tmp_path, f'[slack]\nurl = "{webhook.url}/x"\n')
    with hold_lock(state_directory(environment)):
        with pytest.raises(OSError, match="held by another process"):
            deliver(Event.of("failed", "x"), environment)
        Reporter(environment).report(Event.of("failed", "x"))
    assert webhook.received == []
