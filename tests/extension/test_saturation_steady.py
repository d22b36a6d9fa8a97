"""Live advice: it appears when its evidence has lasted for a minute, and disappears a minute after it."""

import logging
import queue
from typing import Any

import pytest
from saturation_tables import busy, gpu, table

from gipfel_extension.saturation import advise, score_table
from gipfel_extension.saturation.advice import HOLD_S, Advice, DebouncedAdvice, Knob, debounce
from gipfel_extension.server.analysis import SaturationAnalysis
from gipfel_extension.telemetry.sample import SampleTable


def advice(rule: str, gain: float = 10.0, sentence: str = "", **more: Any) -> Advice:
    return Advice(rule, sentence, "", gain, "", Knob("", ""), (), **more)


def shown_over(found: dict[float, list[Advice]], hold_s: float = 60.0) -> dict[float, list[str]]:
    """Return what is shown at each time at which the rules are looked at."""
    history, shown = {}, {}
    for now, given in found.items():
        history, now_shown = debounce(history, given, now, hold_s)
        shown[now] = [each.rule for each in now_shown]
    return shown


def test_it_appears_after_its_evidence_has_held():
    a = advice("a")
    assert shown_over({0: [a], 59.9: [a], 60: [a]}) == {0: [], 59.9: [], 60: ["a"]}


def test_a_pause_begins_the_wait_again():
    a = advice("a")
    assert shown_over({0: [a], 30: [], 35: [a], 90: [a], 95: [a]}) == {
        0: [],
        30: [],
        35: [],
        90: [],
        95: ["a"],
    }


def test_it_stays_until_its_evidence_has_been_gone():
    a = advice("a")
    seen = shown_over({0: [a], 60: [a], 61: [], 120: [], 121: [], 130: [a]})
    assert seen == {0: [], 60: ["a"], 61: ["a"], 120: ["a"], 121: [], 130: []}


def test_what_comes_and_goes_does_not_flicker():
    a = advice("a")
    blinking = {now: [a] if now % 10 else [] for now in range(0, 300, 5)}
    assert not any(shown_over(blinking).values())
    held = {0: [a], 60: [a], **{now: [a] if now % 10 else [] for now in range(65, 400, 5)}}
    assert all(rules == ["a"] for now, rules in shown_over(held).items() if now >= 60)


def test_it_has_its_newest_words_and_the_largest_loss_comes_first():
    def of(points: float, sentence: str) -> Advice:
        return advice("a", 5.0, sentence, loss="input", points=points)

    other = advice("b", 20.0, loss="idle", points=20.0)
    history, _ = debounce({}, [of(10.0, "old"), other], 0)
    history, now = debounce(history, [of(10.0, "new"), other], 60)
    assert [(each.rule, each.sentence) for each in now] == [("b", ""), ("a", "new")]
    history, now = debounce(history, [of(30.0, "newer")], 65)
    assert [(each.rule, each.sentence) for each in now] == [("a", "newer"), ("b", "")]


def test_the_gpus_that_a_sentence_names_change_at_most_once_a_minute():
    """The clock is the argument: every 10 s the rule finds other GPUs than before."""
    history, seen = {}, {}
    for now in range(0, 400, 10):
        gpus = ("0",) if now % 20 else ("0", "1")
        found = advice("a", sentence=f"{gpus} at {now}", loss="input", points=float(now), gpus=gpus)
        history, shown = debounce(history, [found], now)
        for each in shown:
            seen[now] = each
    changes = [now for now in seen if now > 60 and seen[now].gpus != seen[now - 10].gpus]
    assert changes
    assert all(second - first >= 60 for first, second in zip([60, *changes], changes, strict=False))
    # Its place among the losses is always the newest one, and so is its text for the same GPUs.
    assert [each.points for each in seen.values()] == [float(now) for now in seen]
    assert seen[80].sentence.endswith("at 80")


def test_a_loss_keeps_one_sentence_while_rules_take_turns():
    named = advice("compile", 9.0, loss="launch", points=9.0)
    unknown = advice("unaddressed-launch", 0.0, loss="launch", points=9.0)
    seen = shown_over({now: [named if now % 20 else unknown] for now in range(0, 400, 10)})
    assert all(len(rules) == 1 for now, rules in seen.items() if now >= 60)
    assert not any(rules for now, rules in seen.items() if now < 60)


def test_without_a_hold_everything_is_shown_at_once():
    assert shown_over({0: [advice("a")], 1: []}, hold_s=0.0) == {0: ["a"], 1: []}


def small_kernels(length: int) -> SampleTable:
    return table({gpu(): busy(tensor=0.3, dram=0.1, active=0.5)}, length=length)


@pytest.mark.parametrize(("length", "rules"), [(40, set()), (200, {"compile", "cuda-graphs"})])
def test_one_who_looks_later_sees_what_the_samples_have_shown_for_long(length, rules):
    def find(part: SampleTable) -> tuple[Advice, ...]:
        return advise(part, score_table(part))

    given = small_kernels(length)
    view = DebouncedAdvice()
    shown = {each.rule for each in view.displayed(600.0, given, find, find(given), 1000.0)}
    assert {rule for rule in shown if not rule.startswith("unaddressed")} == rules
    # Another one looks at the same time as before, and begins with what is known.
    again = {each.rule for each in view.displayed(600.0, given, find, find(given), 1000.0 + HOLD_S)}
    assert {"compile", "cuda-graphs"} <= again
    view.keep(())
    assert {each.rule for each in view.displayed(600.0, given, find, find(given), 1061.0)} == shown


def test_the_panels_score_holds_back_advice_on_what_has_just_begun(tmp_path):
    for length, hold_s, wanted in ((40, 60.0, False), (200, 60.0, True), (40, 0.0, True)):
        given = small_kernels(length)
        found: queue.Queue[object] = queue.Queue()
        analysis = SaturationAnalysis(
            lambda _, given=given: given,
            tmp_path / "telemetry",
            lambda: {600.0},
            found.put,
            logging.getLogger(__name__),
            hold_s=hold_s,
        )
        document = found.get(timeout=30).document
        analysis.close(30)
        assert document["score"] is not None
        assert ("compile" in {each["rule"] for each in document["advice"]}) is wanted
