"""Let pytest import this directory's modules, and skip its tests without a GPU."""

import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(_ROOT / "extension"), str(_ROOT / "spawner")]

import machine  # noqa: E402 - found through the path above


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = machine.missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function):
    try:
        return (yield)
    except machine.Skipped as skipped:
        pytest.skip(str(skipped))
