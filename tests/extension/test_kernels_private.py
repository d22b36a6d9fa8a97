"""Kernels on a shared node: no TCP port, and no debugger unless it is enabled."""

import json
from pathlib import Path

import psutil
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from gipfel_cluster.runtime import kernel_launch
from gipfel_cluster.runtime.kernel_launch import with_private_sockets
from gipfel_extension.singleuser import DEBUGGER_VARIABLE, BoundSocketServerApp, with_private_specs


class _Sites(KernelSpecManager):
    """A class that a site chose."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the server finds a kernel of another environment beside its own."""
    theirs = tmp_path / "kernels/theirs"
    theirs.mkdir(parents=True)
    argv = ["/opt/conda/bin/python", "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{file}"]
    metadata = {"debugger": True, "mine": 1}
    content = {"argv": argv, "display_name": "Theirs", "language": "python", "metadata": metadata}
    (theirs / "kernel.json").write_text(json.dumps(content))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.delenv(DEBUGGER_VARIABLE, raising=False)
    return tmp_path


@pytest.mark.parametrize("chosen", [{}, {"kernel_spec_manager_class": _Sites}])
def test_no_kernelspec_offers_the_debugger_unless_the_site_or_the_user_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, type[KernelSpecManager]]
) -> None:
    server = BoundSocketServerApp(runtime_dir=str(folder / "run"), root_dir=str(folder), **chosen)
    server.init_configurables()
    manager = server.kernel_spec_manager
    assert isinstance(manager, chosen.get("kernel_spec_manager_class", KernelSpecManager))
    found = manager.get_all_specs()
    assert {"python3", "theirs"} <= set(found)
    assert not any(each["spec"]["metadata"]["debugger"] for each in found.values())
    for name in found:
        assert manager.get_kernel_spec(name).metadata["debugger"] is False
    assert found["theirs"]["spec"]["metadata"]["mine"] == 1
    assert with_private_specs(_Sites)(debugger=True).get_all_specs()["theirs"]["spec"]["metadata"]["debugger"]
    monkeypatch.setenv(DEBUGGER_VARIABLE, "1")
    assert with_private_specs(_Sites)().get_all_specs()["theirs"]["spec"]["metadata"]["debugger"]


def test_only_ipykernels_own_launcher_is_replaced(folder: Path) -> None:
    ours = kernel_launch.__file__
    theirs = with_private_specs(_Sites)().get_kernel_spec("theirs").argv
    assert theirs == ["/opt/conda/bin/python", "-Xfrozen_modules=off", ours, "-f", "{file}"]
    for other in (["R", "-e", "IRkernel::main()"], ["python", "-m", "bash_kernel", "-f", "x"], ["python"]):
        assert with_private_sockets(other) == other


def test_a_kernel_listens_on_no_port_and_shows_what_its_forked_child_prints(folder: Path) -> None:
    manager = KernelManager(
        kernel_name="python3", transport="ipc", kernel_spec_manager=with_private_specs(_Sites)(),
        connection_file=str(folder / "k.json"),
    )  # fmt: skip
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        printed: list[str] = []
        client.execute_interactive(
            "from multiprocessing import get_context\n"
            "def say():\n"
            "    print('from the child', flush=True)\n"
            "child = get_context('fork').Process(target=say)\n"
            "child.start(); child.join(); print('from the parent')",
            timeout=60,
            output_hook=lambda message: printed.append(message["content"].get("text", "")),
        )
        pid = manager.provisioner.pid if manager.provisioner else 0
        listening = [each for each in psutil.Process(pid).net_connections() if each.status == "LISTEN"]
        assert listening == []
        assert "from the child" in "".join(printed)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
