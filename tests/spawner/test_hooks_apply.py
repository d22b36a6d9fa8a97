"""Hooks that are applied, hooks that are left to the site, and a note for each of them."""

from pathlib import Path

import pytest

from gipfel_cluster.edf.model import Edf
from gipfel_cluster.edf.rules_hooks import HOOKS
from gipfel_cluster.engines.protocol import ContainerRequest
from gipfel_cluster.hooks import HookResult, apply_hooks
from gipfel_cluster.hooks.invocation import HOOK_INSTANCES
from gipfel_cluster.hooks.protocol import Network


class QuietNode:
    """A machine without anything that a hook could bring."""

    def __init__(self, network: Network = "tcp") -> None:
        self._network = network

    def user_id(self) -> int:
        return 1000

    def name(self) -> str:
        return "node01"

    def network(self) -> Network:
        return self._network

    def infiniband(self) -> tuple[str, ...]:
        return ("mlx5_0", "mlx5_1")

    def libraries(self) -> dict[str, str]:
        return {}

    def is_socket(self, path: str) -> bool:
        return False

    def listens(self, port: int) -> bool:
        return False


def request(annotations: dict[str, str], **more: object) -> ContainerRequest:
    edf = Edf(name="a", path=None, image="/a.sqsh", annotations=annotations)
    return ContainerRequest(edf=edf, command=("true",), scratch="/s", **more)


def hooked(annotations: dict[str, str], engine: str = "bubblewrap") -> HookResult:
    return apply_hooks(request(annotations), engine=engine, runtime=None, node=QuietNode())


def test_ce_applies_hooks_itself() -> None:
    annotations = {f"com.hooks.{name}.enabled": "true" for name in HOOKS}
    done = hooked(annotations, engine="ce")
    assert done == HookResult(request=request(annotations))


def test_unknown_hooks_of_ce_are_noted() -> None:
    done = hooked({"com.hooks.cix.enabled": "true", "com.hooks.ssh.enabled": "true"}, engine="ce")
    assert done.notes == ("Gipfel knows no hook 'cix' of the Container Engine.",)


@pytest.mark.parametrize("engine", ["bubblewrap", "podman", "apptainer", "pyxis"])
def test_every_enabled_hook_is_noted_in_other_engines(engine: str) -> None:
    done = hooked({f"com.hooks.{name}.enabled": "true" for name in [*HOOKS, "of_a_site"]}, engine=engine)
    for name in [*HOOKS, "of_a_site"]:
        assert [note for note in done.notes if f"com.hooks.{name}" in note], name
    assert all("\n" not in note for note in done.notes)


def test_a_disabled_hook_adds_no_note() -> None:
    off = {"com.hooks.cxi.enabled": "false", "com.hooks.ssh.enabled": "True", "com.hooks.ssh.port": "2222"}
    assert hooked(off) == HookResult(request=request(off))


def test_a_network_stack_is_chosen_without_a_switch() -> None:
    (note,) = hooked({"com.hooks.netstack.version": "26.06.1"}).notes
    assert note.startswith("com.hooks.netstack is left to the site in the engine bubblewrap")


def test_every_hook_of_the_lint_rules_is_implemented() -> None:
    assert {hook.name for hook in HOOK_INSTANCES} == set(HOOKS)


def test_hooks_run_in_alphabetical_order_on_the_changed_request(tmp_path: Path) -> None:
    class Adds:
        def __init__(self, name: str) -> None:
            self.name = name

        def apply(self, asked, settings, where, node):
            return HookResult(request=asked.model_copy(update={"command": (*asked.command, self.name)}))

    done = apply_hooks(
        request({"com.hooks.b.enabled": "true", "com.hooks.a.enabled": "true"}),
        engine="podman",
        runtime=None,
        node=QuietNode(),
        hooks=(Adds("b"), Adds("a")),
    )
    assert done.request.command == ("true", "a", "b")


def test_names_with_control_characters_or_of_any_length_are_shortened():
    for engine in ("bubblewrap", "ce"):
        annotations = {"com.hooks.x\x1b[31m\ny.enabled": "true", f"com.hooks.{'z' * 10_000}.enabled": "true"}
        edf = Edf(name="x", path=None, annotations=annotations)
        request = ContainerRequest(edf=edf, command=("true",), environment={}, scratch="/scratch")
        notes = apply_hooks(request, engine=engine, runtime=None, node=QuietNode()).notes
        assert len(notes) == 2
        assert all(note.isprintable() and len(note) < 200 for note in notes)


def test_annotations_without_a_hook_are_noted():
    annotations = {f"org.{letter}": "1" for letter in "abcdefg"} | {"com.hooks.cxi.enabled": "false"}
    edf = Edf(name="x", path=None, annotations=annotations)
    request = ContainerRequest(edf=edf, command=("true",), environment={}, scratch="/scratch")

    def notes(engine):
        return apply_hooks(request, engine=engine, runtime=None, node=QuietNode()).notes

    (note,) = notes("bubblewrap")
    assert "org.a, org.b, org.c, org.d, org.e and 2 more" in note
    assert notes("ce") == notes("pyxis") == ()
