"""``gipfel notify``: what its help teaches, a test message, and what status shows without secrets."""

import json
import tomllib
from pathlib import Path

import click
import pytest
from notify_servers import Webhook, running, write_settings

from gipfel_cluster.notify import KINDS, NotifySettings
from gipfel_extension.cli import main
from gipfel_extension.cli.publish import notify

SECRET = "T0PSECRET"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_help_has_a_file_that_is_accepted_and_every_kind_of_event() -> None:
    text = notify.get_help(click.Context(notify, info_name="notify", max_content_width=200))
    lines = [line.strip() for line in text.splitlines()]
    first, last = lines.index(next(each for each in lines if each.startswith("hub ="))), "password ="
    end = next(number for number, line in enumerate(lines) if line.startswith(last))
    document = "\n".join(lines[first : end + 1]).replace("...", "x")
    settings = NotifySettings.model_validate(tomllib.loads(document))
    assert settings.channels == ("email", "slack", "ntfy")
    for kind, meaning in KINDS.items():
        assert any(line.split() == [kind, *meaning.split()] for line in lines), kind


def test_without_a_file_nothing_is_sent_and_both_commands_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify", "test"]) == 1
    assert "No service is set up in" in capsys.readouterr().err
    assert main(["notify", "status"]) == 0
    assert "Nothing is sent" in capsys.readouterr().out


def test_a_test_message_is_sent_and_its_outcome_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    webhook = Webhook()
    with running(webhook):
        path = write_settings(home, f'events = ["failed"]\n[slack]\nurl = "{webhook.url}/{SECRET}"\n')
        assert main(["notify", "test"]) == 0
        assert capsys.readouterr().out == "slack  accepted the message\n"
        webhook.status = 404
        assert main(["notify", "test", "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert document == {"slack": {"problem": "127.0.0.1 did not accept the message (HTTP status 404)."}}
    assert len(webhook.received) == 2
    assert webhook.received[0][2]["text"].startswith("A test message\nSent by")
    assert main(["notify", "status"]) == 0
    shown = capsys.readouterr()
    assert "HTTP status 404" in shown.out
    assert "Sent: failed; at most 20 in an hour." in shown.out
    path.chmod(0o644)
    assert main(["notify", "status"]) == 1
    assert "chmod 600" in capsys.readouterr().err
    assert main(["notify", "status", "--json"]) == 1
    assert "mode 0644" in json.loads(capsys.readouterr().out)["problem"]
    assert SECRET not in shown.out + shown.err
