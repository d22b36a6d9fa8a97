"""Exchange of vetting results with a site's registry, only with consent."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from vetting_records import entries, record, result

from gipfel_extension.vetting.history.site_registry import (
    has_consent,
    set_consent,
    share_record,
    site_baselines,
)
from gipfel_extension.vetting.history.store import history_root
from gipfel_extension.vetting.model import Verdict

SENT = "The results were sent to the site's registry."


class Receiver:
    """A registry that answers what it is told to, and keeps what it got."""

    def __init__(self, status: int, answer: bytes, headers: dict[str, str]) -> None:
        self.got: list[tuple[str, str, bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                receiver.got.append((self.path, self.headers["Authorization"], body))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def registry() -> Iterator[Callable[[int, bytes], Receiver]]:
    """Registries that give one answer."""
    made: list[Receiver] = []

    def make(status: int, answer: bytes) -> Receiver:
        made.append(Receiver(status, answer, {}))
        return made[-1]

    yield make
    for each in made:
        each.close()


class TestSharing:
    def environment(self, url: str, tmp_path: Path, **more: str) -> dict[str, str]:
        return {
            "GIPFEL_REGISTRY_URL": url, "JUPYTERHUB_API_TOKEN": "secret", "HOME": str(tmp_path),
            "http_proxy": "http://127.0.0.1:9", **more,
        }  # fmt: skip

    def test_nothing_leaves_without_consent(self, tmp_path: Path) -> None:
        receiver = Receiver(201, b"{}", {})
        environment = self.environment(receiver.url, tmp_path)
        assert not has_consent(environment)
        assert share_record(record(result()), environment=environment) != SENT
        set_consent(share=True, root=history_root(environment))
        assert share_record(record(result()), environment=environment) == SENT
        declined = environment | {"GIPFEL_SHARE_VETTING": "no"}
        assert share_record(record(result()), environment=declined) != SENT
        set_consent(share=False, root=history_root(environment))
        assert share_record(record(result()), environment=environment) != SENT
        receiver.close()
        ((path, token, body),) = receiver.got
        assert (path, token) == ("/api/reports", "token secret")
        assert json.loads(body)["record"]["entries"][0]["node"] == "n1"
        assert str(tmp_path).encode() not in body

    def test_of_a_report_that_is_too_large_the_bad_news_are_sent(self, tmp_path: Path) -> None:
        receiver = Receiver(201, b"{}", {})
        environment = self.environment(receiver.url, tmp_path, GIPFEL_SHARE_VETTING="yes")
        (good,), (bad,) = entries(Verdict.PASS), entries(Verdict.FAIL)
        large = record().model_copy(update={"entries": (good,) * 50_001 + (bad,)})
        assert share_record(large, environment=environment) == SENT
        receiver.close()
        sent = json.loads(receiver.got[0][2])["record"]["entries"]
        assert (len(sent), sent[0]["verdict"]) == (50_000, "fail")

    @pytest.mark.parametrize(
        ("status", "answer", "headers", "words"),
        [
            (403, b'{"message": "Job 7 is not yours."}', {}, "Job 7 is not yours."),
            (500, b"<html>", {}, "500"),
            (302, b"", {"Location": "http://127.0.0.1:1/"}, "302"),
            (429, b'{"message": ["a", "\\u0000"]}', {}, "refused"),
        ],
    )
    def test_a_refusal_is_one_sentence(
        self, tmp_path: Path, status: int, answer: bytes, headers: dict[str, str], words: str
    ) -> None:
        receiver = Receiver(status, answer, headers)
        environment = self.environment(receiver.url, tmp_path, GIPFEL_SHARE_VETTING="yes")
        shared = share_record(record(result()), environment=environment)
        receiver.close()
        assert shared != SENT
        assert words in shared
        assert len(receiver.got) == 1

    @pytest.mark.parametrize(
        ("url", "token", "words"),
        [
            ("http://127.0.0.1:1", "secret", "did not respond"),
            ("file:///etc/passwd", "secret", "not a web address"),
            ("", "secret", "no registry"),
            ("http://127.0.0.1:1", "", "holds a token"),
            ("http://127.0.0.1:1", "a\r\nX: y", "holds a token"),
            ("http://[", "secret", "did not respond"),
        ],
    )
    def test_whatever_is_wrong_the_vetting_goes_on(
        self, tmp_path: Path, url: str, token: str, words: str
    ) -> None:
        environment = self.environment(url, tmp_path, JUPYTERHUB_API_TOKEN=token, GIPFEL_SHARE_VETTING="yes")
        shared = share_record(record(result()), environment=environment)
        assert shared != SENT
        assert words in shared

    def test_a_registry_that_hangs_is_left_after_the_limit(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            environment = self.environment(
                f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, GIPFEL_SHARE_VETTING="yes"
            )
            shared = share_record(record(result()), environment=environment, limit_s=0.3)
        assert "did not respond" in shared
        assert os.environ.get("GIPFEL_REGISTRY_URL") is None


def test_what_is_the_users_own_is_not_shared(registry: Any, tmp_path: Path) -> None:
    receiver = registry(201, b"{}")
    environment = {
        "GIPFEL_REGISTRY_URL": receiver.url,
        "GIPFEL_REGISTRY_TOKEN": "t",
        "GIPFEL_SHARE_VETTING": "yes",
    }
    secret = "MY_TOKEN is 'hunter2', and /users/ada/secret is not there."
    kept = record(
        result("n1", Verdict.FAIL, check="env", type="environment", subject="/users/ada", reason=secret),
        result("n1", Verdict.NOT_RUN, reason=secret),
        result("n1", Verdict.FAIL, type="another package's", reason=secret),
        result("n1", Verdict.FAIL, check="bandwidth", type="memory_bandwidth", reason="30 % below."),
    )
    assert share_record(kept, environment=environment, root=tmp_path) == SENT
    ((_, _, body),) = receiver.got
    assert b"hunter2" not in body
    assert b"/users/ada" not in body
    entries = json.loads(body)["record"]["entries"]
    assert [each["reason"] for each in entries] == ["", "", "", "30 % below."]
    assert entries[3]["subject"] == "GPU-1"


def test_usual_figures_of_the_site_are_asked_for_by_who_shares(registry: Any, tmp_path: Path) -> None:
    known = {
        "type": "matmul", "check": "matmul", "gpu_model": "NVIDIA GH200 120GB", "unit": "FLOP/s",
        "median": 7e14, "spread": 1e12, "nodes": 9, "samples": 30,
    }  # fmt: skip
    receiver = registry(200, json.dumps({"baselines": [known, known | {"gpu_model": "other"}]}).encode())
    environment = {"GIPFEL_REGISTRY_URL": receiver.url, "GIPFEL_REGISTRY_TOKEN": "t"}
    models = {"NVIDIA GH200 120GB", ""}
    assert site_baselines("alps", models, environment=environment, root=tmp_path) == ()
    environment["GIPFEL_SHARE_VETTING"] = "yes"
    (found,) = site_baselines("alps", models, environment=environment, root=tmp_path)
    assert found.median == 7e14
    assert [path for path, *_ in receiver.got] == ["/api/baselines/alps?model=NVIDIA+GH200+120GB&days=30"]
    for status, answer in (
        (403, b"{}"),
        (200, b"[" * 100_000),
        (200, b"\xff"),
        (200, b'{"baselines": [{}]}'),
    ):
        environment["GIPFEL_REGISTRY_URL"] = registry(status, answer).url
        assert site_baselines("alps", models, environment=environment, root=tmp_path) == ()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        environment["GIPFEL_REGISTRY_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert site_baselines("alps", models, environment=environment, root=tmp_path, limit_s=0.2) == ()
