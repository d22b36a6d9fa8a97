"""Values of users' metrics beside those that the packages' own readers return, each in its own environment.

The environments are made by pip below ``build/peers``, once, as for ``make bench``; a test is skipped where
a package can't be installed.
"""

import json
import subprocess
from pathlib import Path

import pytest
from event_bytes import event, frame, simple
from peer_environment import peer_python
from test_tracking_tensorboard import read_all

from gipfel_extension.tracking.find import kind_of

_DATA = Path(__file__).parent / "data"
_INSTALL_S = 300.0
#: Requirements, and a program that prints [name, step, seconds, value] of all scalars of a file as JSON.
_PEERS = {
    "tensorboard": """
import json, sys
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray
plugins, found = {}, []
for each in EventFileLoader(sys.argv[1]).Load():
    for value in each.summary.value if each.HasField("summary") else ():
        if value.HasField("metadata"):
            plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
        if plugins.get(value.tag) == "scalars":
            number = float(make_ndarray(value.tensor).item())
            found.append((value.tag, each.step, each.wall_time, repr(number)))
print(json.dumps(found))
""",
    # The last versions with a reader in Python; later ones have it in a program written in Go.
    "wandb==0.19.11": """
import json, sys
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore
store, record, found = DataStore(), wandb_internal_pb2.Record(), []
store.open_for_scan(sys.argv[1])
while (data := store.scan_data()) is not None:
    record.ParseFromString(data)
    items = record.history.item
    row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
    step, time = row.get("_step", record.history.step.num), row.get("_timestamp")
    numbers = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
    for name, value in row.items():
        value = numbers.get(value, value) if isinstance(value, str) else value
        if name[0] != "_" and (isinstance(value, int | float) or value in numbers.values()):
            found.append((name, step, time, repr(float(value))))
print(json.dumps(found))
""",
}


def _theirs(requirement: str, path: Path) -> list[tuple[str, int, float, str]]:
    python = peer_python(requirement, (requirement, "setuptools<81"), _INSTALL_S)
    if python is None:
        pytest.skip(f"{requirement} can't be installed here")
    argv = [python, "-c", _PEERS[requirement], path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    return [(name, step, round(seconds, 3), value) for name, step, seconds, value in json.loads(done.stdout)]


def _ours(path: Path) -> list[tuple[str, int | None, float, str]]:
    kind = kind_of(path)
    assert kind is not None
    scalars = read_all(kind.opener(path, None))
    return [(each.name, each.step, round((each.time_ns or 0) / 1e9, 3), repr(each.value)) for each in scalars]


@pytest.mark.parametrize("name", ["torch_simple_value", "torch_tensor", "many"])
def test_event_files_have_the_values_of_tensorboards_reader(tmp_path: Path, name: str) -> None:
    path = tmp_path / "events.out.tfevents.1"
    if name == "many":
        events = (
            event(n, 1.8e9 + n / 4, simple("loss", 3 / (n + 1)), simple("a/b", -n)) for n in range(5000)
        )
        path.write_bytes(b"".join(map(frame, events)))
    else:
        path.write_bytes((_DATA / "event_files" / f"{name}.tfevents.bin").read_bytes())
    ours = _ours(path)
    assert len(ours) == (10_000 if name == "many" else 86)
    assert ours == _theirs("tensorboard", path)


def test_a_wandb_file_has_the_values_of_wandbs_reader() -> None:
    path = _DATA / "wandb" / "offline-0.31-nan-and-infinity.wandb"
    ours = _ours(path)
    assert len(ours) > 100
    assert sorted(ours) == sorted(_theirs("wandb==0.19.11", path))
