"""Options of a launch cell from a dictionary in the kernel, which a notebook's `parameters` fill."""

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_widgets.launch_options import parse_line


def test_a_dictionary_of_options_reaches_the_launch_as_it_is() -> None:
    how = {
        "name": "mine",
        "nodes": "1:2",
        "gpus_per_node": 4,
        "edf": "",
        "vet": None,
        "profile": True,
        "no_preflight": False,
        "checkpoint": "/a b/$(touch x); {y}",
        "env": ["A=1 2", "B=--x"],
    }
    asked = parse_line("--using how --gpus-per-node 3 --pass steps", "print(1)", {"how": how, "steps": 7})
    assert asked is not None
    spec = asked.spec
    assert (spec.name, spec.nodes, spec.nodes_min, spec.gpus_per_node) == ("mine", 2, 1, 3)
    assert (spec.edf, spec.vetting, spec.profile, spec.preflight) == ("", "", True, True)
    assert spec.checkpoint == "/a b/$(touch x); {y}"
    assert spec.environment == {"A": "1 2", "B": "--x"}
    assert spec.parameters == {"steps": 7}


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"nodez": 1}, "'nodez' in how is not a valid option"),
        ({"using": "how"}, "'using' in how is not a valid option"),
        ({1: 2}, "'1' in how is not a valid option"),
        ({"nodes": "x"}, "not a valid number of nodes"),
        (["nodes"], "is not a dictionary"),
        (None, "is not a dictionary"),
    ],
)
def test_what_is_no_option_is_one_line(how: object, says: str) -> None:
    with pytest.raises(GipfelError, match=says) as caught:
        parse_line("--using how", "print(1)", {"how": how})
    assert "\n" not in str(caught.value)
