"""``com.hooks.aws_ofi_nccl``: what NCCL and RCCL are told of the network where no hook brings the plugin."""

from collections.abc import Mapping

from ..engines.protocol import ContainerRequest
from .node import Node
from .presets import Library, Preset, choose_preset
from .protocol import Hooked, Surroundings

_SHOWN = ("com.hooks.aws_ofi_nccl: that is for this machine's network; the job's node may have another one.",)
_VERSION = "com.hooks.netstack.version"


class AwsOfiNccl:
    """Sets the environment for the network that the node has; the plugin must be in the image."""

    name = "aws_ofi_nccl"

    def apply(
        self,
        request: ContainerRequest,
        settings: Mapping[str, str],
        where: Surroundings,  # noqa: ARG002
        node: Node,
    ) -> Hooked:
        """Offer the preset's variables: the image's and the EDF's own win."""
        library: Library = "rccl" if settings.get("variant", "").startswith("rocm") else "nccl"
        preset = choose_preset(library, node.network(), request.edf.annotations.get(_VERSION, ""))
        own = {*request.environment, *request.edf.env}
        devices = ",".join(node.infiniband())
        added = {
            name: value.replace("{devices}", devices)
            for name, value in preset.variables.items()
            if name not in own
        }
        kept = sorted(set(preset.variables) - set(added))
        return Hooked(
            request=request.model_copy(update={"environment": {**request.environment, **added}}),
            notes=(*_notes(preset, added, kept), *(_SHOWN if request.only_shown else ())),
        )


def _notes(preset: Preset, added: Mapping[str, str], kept: list[str]) -> list[str]:
    notes = []
    if added:
        words = " ".join(f"{name}={value}" for name, value in sorted(added.items()))
        notes.append(f"com.hooks.aws_ofi_nccl: preset {preset.name} sets {words}.")
    if kept:
        notes.append(f"com.hooks.aws_ofi_nccl: {', '.join(kept)} are yours and stay.")
    notes.append(f"com.hooks.aws_ofi_nccl: {preset.remark}")
    return notes
