"""The TypeScript interfaces of the panel are those of the server's models."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "extension"))

import generate_api
from gipfel_extension.routes import ROUTES
from gipfel_extension.saturation import LOSSES
from gipfel_extension.server.responses import Lifetime, ResponseModel, StreamMessage
from gipfel_extension.server.task_responses import ROUTE_RESPONSES


def test_the_committed_interfaces_are_current():
    current = generate_api.TARGET.read_text() == generate_api.generate()
    assert current, "Run `python generate_api.py` in extension/."


def test_each_term_has_two_sentences_a_page_and_a_line_of_the_glossary():
    terms = generate_api.read_terms()
    assert generate_api.GLOSSARY.read_text() == generate_api.generate_glossary()
    # None is left out by its form.
    assert len(terms) == generate_api.TERMS.read_text().count("  name: '")
    root = generate_api.GLOSSARY.parent.parent
    for name, text, page in terms:
        assert len(re.findall(r"[.:](?: |$)", text.replace(": ", " "))) == 2, name
        assert (root / page).is_file(), page
    losses = {name.replace("-", "_") for name, _, _ in terms}
    assert set(LOSSES) <= losses


def test_a_changed_model_changes_the_interfaces(monkeypatch):
    class Extended(ResponseModel):
        """An answer with a new field."""

        seconds: float | None
        names: tuple[str, ...] = ()

    Extended.__module__ = generate_api.responses.__name__
    monkeypatch.setattr(generate_api.responses, "Extended", Extended, raising=False)
    expected = (
        "/** An answer with a new field. */\nexport interface IExtended {\n"
        "  readonly seconds: number | null;\n  readonly names?: readonly string[];\n}\n"
    )
    assert expected in generate_api.generate()


def test_a_type_without_a_counterpart_is_refused(monkeypatch):
    class Odd(ResponseModel):
        """Holds what JSON can't."""

        place: Path

    Odd.__module__ = generate_api.responses.__name__
    monkeypatch.setattr(generate_api.responses, "Odd", Odd, raising=False)
    with pytest.raises(TypeError, match="has no TypeScript type here"):
        generate_api.generate()


def test_each_answer_is_of_a_route_that_there_is():
    routes = {pattern for pattern, _ in ROUTES}
    assert {path for _, path in ROUTE_RESPONSES} <= routes


def test_an_answer_that_lacks_a_key_is_refused():
    with pytest.raises(ValidationError, match="idle"):
        Lifetime.model_validate({"now_ms": 0, "ends_ms": None, "notices_s": [], "extend_s": 0})


def test_what_the_stream_sends_is_of_its_types(server):
    messages: TypeAdapter[Any] = TypeAdapter(StreamMessage)
    seen = set()
    connection = server.stream()
    try:
        while not {"figures", "samples"} <= seen:
            seen.add(messages.validate_python(json.loads(connection.recv())).type)
    finally:
        connection.close()
