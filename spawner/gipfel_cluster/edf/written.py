"""The nine keys of an EDF as people write them; the JSON Schema for editors and forms is made of this."""

import json
from typing import Annotated

from pydantic import Field, RootModel

from ..model import Frozen

_Text = Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Annotations(RootModel[dict[str, "_Text | Annotations"]]):
    """Annotations, nested or dotted; a value is a string."""


class WrittenEdf(Frozen):
    """An environment definition file (EDF): what a container on a cluster is made of."""

    base_environment: str | list[str] = Field(
        default="",
        description="EDFs to inherit, by name or path. Later ones win over earlier ones, this file over all; "
        "mounts and devices are appended. At most ten levels.",
    )
    image: _Text = Field(
        default="",
        description="[USER@][REGISTRY#]IMAGE[:TAG], or a SquashFS file that begins with '/', './' or '${'. "
        "Without one there is no container.",
    )
    workdir: _Text = Field(default="", description="The working folder in the container, an absolute path.")
    entrypoint: bool = Field(default=False, description="Run the entrypoint of the image first.")
    writable: bool = Field(default=True, description="Whether the root file system can be written to.")
    mounts: list[_Text] = Field(
        default=[],
        description="SOURCE:DESTINATION[:FLAG+FLAG]. The flag 'sqsh' stands alone: a SquashFS file.",
    )
    env: dict[_Variable, _Text] = Field(
        default={},
        json_schema_extra={"additionalProperties": False},
        description="Variables of the container. An empty value unsets one. They do not see each other.",
    )
    annotations: Annotations = Field(
        default=Annotations({}),
        description='For hooks, nested or dotted: com.hooks.cxi.enabled = "true". Values are strings.',
    )
    devices: list[_Text] = Field(
        default=[], description="Devices as Podman's --device takes them: nvidia.com/gpu=all. Sarus only."
    )


KEYS = tuple(WrittenEdf.model_fields)


def schema_text() -> str:
    """The JSON Schema of an EDF, as the file ``schema.json`` beside this one holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | WrittenEdf.model_json_schema()
    return json.dumps(schema | {"title": "EDF"}, indent=2) + "\n"
