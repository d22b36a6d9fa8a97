"""Where samples come from: what travels in the head of every file of a telemetry folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .sample import METRICS, Device


@dataclass(frozen=True)
class Provenance:
    """Where the samples of a segment come from; travels in its schema's metadata.

    Parameters
    ----------
    interval
        Seconds between two samples.
    extra
        Metrics of its GPUs that were asked for beside those of ``METRICS``.
    """

    node: str
    recorder: str
    source: str
    simulated: bool
    interval: float
    devices: tuple[Device, ...]
    extra: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, tuple[str, ...]]:
        """The metrics of each kind of device that is there, in the order in which they are written."""
        kinds = {device.kind for device in self.devices}
        asked = {"gpu": self.extra}
        return {
            kind: tuple(dict.fromkeys((*names, *asked.get(kind, ()))))
            for kind, names in METRICS.items()
            if kind in kinds
        }

    def to_metadata(self) -> dict[str, str]:
        """The provenance as texts, for a schema's metadata."""
        return {
            "node": self.node,
            "recorder": self.recorder,
            "source": self.source,
            "simulated": "true" if self.simulated else "false",
            "interval": repr(self.interval),
            "devices": json.dumps([device.to_json() for device in self.devices]),
            "extra": json.dumps(self.extra),
        }

    @classmethod
    def from_metadata(cls, given: Mapping[str, Any]) -> "Provenance":
        """The provenance of :meth:`to_metadata`; what is missing is empty.

        Raises
        ------
        ValueError
            A value is none that :meth:`to_metadata` writes.
        """
        try:
            devices = tuple(Device.from_json(device) for device in json.loads(given.get("devices", "[]")))
            if not all(device.kind in ("gpu", "host") and isinstance(device.uuid, str) for device in devices):
                raise ValueError("a device is neither GPU nor host")
            return cls(
                str(given.get("node", "")),
                str(given.get("recorder", "")),
                str(given.get("source", "")),
                given.get("simulated") == "true",
                float(given.get("interval", 0.0)),
                devices,
                tuple(str(name) for name in json.loads(given.get("extra", "[]"))),
            )
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"its metadata is not ours: {error}") from error
