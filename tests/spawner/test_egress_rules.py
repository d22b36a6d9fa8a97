"""Rules of the gate around a command: entries of its allow list, names that are asked for, and its log."""

import json
import sys
from pathlib import Path

import pytest

from gipfel_cluster.edf import Edf
from gipfel_cluster.edf.gate import ALLOW, MODE, Gate, Gates, gates_of, parse_host
from gipfel_cluster.egress.__main__ import refused_destination
from gipfel_cluster.egress.log import GateLog
from gipfel_cluster.egress.names import OK, REFUSED, answer, parse_question
from gipfel_cluster.egress.start import applied_gates, gate_invocation
from gipfel_cluster.engines import Invocation
from gipfel_cluster.model import GipfelError

_QUESTION = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03ORG\x00\x00\x01\x00\x01"


@pytest.mark.parametrize(
    ("entry", "name", "port", "allowed"),
    [
        ("example.org", "Example.org.", 443, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "evil-example.org", 443, False),
        ("*.hf.co", "cdn.hf.co", 80, True),
        ("*.hf.co", "hf.co", 443, False),
        ("*.hf.co", "hf.co.evil.org", 443, False),
        ("db.site:5432", "db.site", 5432, True),
        ("db.site:5432", "db.site", 443, False),
        ("10.0.0.1", "10.0.0.1", 80, True),
        ("10.0.0.1", "::ffff:10.0.0.1", 80, True),
        ("*.hf.co", "0x0a000001", 443, False),
        ("example.org", "2130706433", 443, False),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1", 80, True),
        ("[::ffff:a00:1]", "[::FFFF:10.0.0.1]", 443, True),
        ("127.0.0.1", "::1", 80, False),
        ("xn--bcher-kva.example", "XN--bcher-kva.example.", 443, True),
        ("[2001:db8::1]:8080", "2001:0db8::1", 8080, True),
    ],
)
def test_an_entry_allows_its_host_and_ports_alone(entry: str, name: str, port: int, allowed: bool) -> None:
    assert Gates(gates=(Gate(allow=(entry,)),)).allows(name, port) is allowed


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "https://example.org",
            "a b",
            "host:0",
            "host:99999",
            "1.2.3",
            "[x]",
            "",
            "example..org",
            "a.example..",
        ),
        # What resolvers take for an address, in decimal, hexadecimal and octal.
        *(
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "10.0.0.0x1",
            "010.0.0.1",
            "0x.",
            "*.1",
            "1.2.3.4.",
            "a.example.1",
        ),
        *(
            "bücher.example",
            "\u212aernel.example",
            "\uff45xample.org",
            "example。org",
            "example.org\u200b",
            "٣.example",
        ),
        *(
            ".".join(["a" * 60] * 5),
            f"{'a' * 64}.example",
            "*",
            "*.",
            "a.*.example",
            "fe80::1",
            "[fe80::1%eth0]",
        ),
    ],
)
def test_what_is_not_a_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"host|port"):
        parse_host(entry)


def test_every_gate_must_allow_a_destination() -> None:
    gates = gates_of(
        {ALLOW: "example.org, evil.org", MODE: "warn"},
        {"GIPFEL_NETWORK_ALLOW": "example.org"},
        Gate(allow=("*.org",)),
    )
    assert gates is not None
    assert gates.allows("example.org", 443)
    assert not gates.allows("evil.org", 443)
    assert not gates.allows("python.org", 443)
    assert gates.mode == "refuse"
    assert gates_of({}, {}) is None
    assert not gates_of({ALLOW: ""}, {}).allows_name("example.org")  # type: ignore[union-attr]
    with pytest.raises(GipfelError, match="The EDF's gate is not valid"):
        gates_of({ALLOW: "https://example.org/simple"}, {})
    with pytest.raises(GipfelError, match="no list of hosts"):
        gates_of({MODE: "warn"}, {})


def test_what_can_not_run_behind_a_gate_is_refused_or_named() -> None:
    edf = Edf(name="e", path=None, annotations={ALLOW: "example.org"})
    for kwargs, said in (
        ({"nodes": 2}, "2 nodes"),
        ({"tasks": 4}, "4 tasks"),
        ({"unreachable": "A notebook server can't run behind a gate."}, "notebook server"),
    ):
        with pytest.raises(GipfelError, match=said):
            applied_gates(edf, {}, None, engine="host", **kwargs)  # type: ignore[arg-type]
    with pytest.raises(GipfelError, match="engine ce"):
        applied_gates(edf, {}, None, engine="ce")
    warned = edf.model_copy(update={"annotations": {ALLOW: "", MODE: "warn"}})
    gates, problem = applied_gates(warned, {}, None, engine="host", nodes=2)
    assert gates is None
    assert "2 nodes" in problem


def test_wrong_ranges_of_the_cluster_keep_a_gate_from_being_made() -> None:
    made = Invocation(argv=("true",), environment={"GIPFEL_NETWORK_INSIDE": "10.0.0.1/8"})
    with pytest.raises(GipfelError, match="GIPFEL_NETWORK_INSIDE is not a list"):
        gate_invocation(
            made, Gates(gates=(Gate(allow=("a.example",)),)), run="", node="n1", python=sys.executable
        )


def test_names_are_answered_and_hostile_questions_are_not() -> None:
    question = parse_question(_QUESTION)
    assert (question.name, question.type, question.identifier) == ("example.org", 1, 0x1234)
    found = answer(question, OK, ("203.0.113.1", "2001:db8::1"))
    assert found[:4] == b"\x12\x34\x81\x80"
    assert found.endswith(bytes((203, 0, 113, 1)))
    assert answer(question, REFUSED)[3] & 15 == REFUSED
    for data in (
        b"",
        _QUESTION[:14],
        _QUESTION[:12] + b"\xc0\x0c\x00\x01\x00\x01",
        _QUESTION[:12] + b"\x3f" + b"a" * 10,
        _QUESTION[:12] + b"\x02\xff\xfe\x00\x00\x01\x00\x01",
        _QUESTION.replace(b"\x01\x00\x00\x01", b"\x81\x00\x00\x01", 1),
        _QUESTION[:12] + b"\x01a" * 200,
    ):
        with pytest.raises((ValueError, UnicodeDecodeError)):
            parse_question(data)
    for packet in (b"", b"\x45", b"\x45" + bytes(8) + b"\x01" + bytes(20), bytes(range(60))):
        try:
            assert refused_destination(packet) is None
        except (ValueError, IndexError):
            continue


def test_the_log_is_bounded_and_survives_a_directory_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "gate").write_text("")
    noted = GateLog(tmp_path / "gate", "n1").note("a\nb\x1b[2J", 1, "tcp", allowed=False)
    assert noted.name == "a b?[2J"
    log = GateLog(tmp_path / "many", "n1", clock_ns=lambda: 1)
    for number in range(5050):
        log.note(f"h{number}.example", 443, "tcp", allowed=False)
    log.flush(at_once=True)
    rows = (tmp_path / "many").glob("*.jsonl")
    names = {json.loads(line)["name"] for path in rows for line in path.read_text().splitlines()}
    assert "other destinations" in names
    assert len(names) == 5001
