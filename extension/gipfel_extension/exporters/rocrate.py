"""Write a run as an RO-Crate: a zip file with its files and a description that other tools understand.

The profile is Process Run Crate 0.5 (https://w3id.org/ro/wfrun/process/0.5) on RO-Crate 1.1: the run and each
launch are actions, the program is their instrument, parameters are their objects, files their results.
"""

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gipfel_cluster.model import one_line

from .run_document import RunDocument

_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
_ACTION_STATUS = {
    "FINISHED": "http://schema.org/CompletedActionStatus",
    "RUNNING": "http://schema.org/ActiveActionStatus",
}
_FAILED = "http://schema.org/FailedActionStatus"
_TYPES = {
    ".json": "application/json",
    ".txt": "text/plain",
    ".log": "text/plain",
    ".html": "text/html",
    ".ipynb": "application/x-ipynb+json",
    ".jsonl": "application/x-ndjson",
}
#: Earliest time that a zip file can store.
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_METADATA = "ro-crate-metadata.json"
_USER = "#user"

Entity = dict[str, Any]


def write_crate(document: RunDocument, output: Path, *, user: str) -> list[str]:
    """Write the crate of a run atomically; return the files that could not be read, with reasons.

    Raises
    ------
    OSError
        The file can't be written.
    """
    skipped: list[str] = []
    handle, temporary = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            written: dict[str, list[Entity]] = {}
            for each in (document, *document.children):
                written[each.key] = list(_add_files(archive, each, document, skipped))
            metadata = crate_metadata(document, written, user=user)
            text = json.dumps(metadata, indent=1, ensure_ascii=False)
            archive.writestr(zipfile.ZipInfo(_METADATA, _EARLIEST), text)
        Path(temporary).replace(output)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return skipped


def crate_metadata(document: RunDocument, files: Mapping[str, list[Entity]], *, user: str) -> dict[str, Any]:
    """Return the content of ``ro-crate-metadata.json``.

    Parameters
    ----------
    files
        The entities of the files in the crate, by key of the run or launch.
    """
    every = [each for some in files.values() for each in some]
    actions = [_action(each, files.get(each.key, ())) for each in (document, *document.children)]
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": document.title,
        "description": document.tags.get("note") or f"Run {document.key}, recorded by Gipfel.",
        "datePublished": _time(document.ended_ms) or _time(document.started_ms) or "",
        "conformsTo": {"@id": _PROFILE},
        "hasPart": _references(every),
        "mentions": _references(actions),
    }
    graph: list[Entity] = [
        {
            "@id": _METADATA,
            "@type": "CreativeWork",
            "conformsTo": {"@id": _SPECIFICATION},
            "about": {"@id": "./"},
        },
        root,
        {"@id": _PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
        {"@id": _USER, "@type": "Person", "name": user},
        *actions,
        *every,
    ]
    for each in (document, *document.children):
        graph += _instruments(each)
        graph += _parameters(each)
    return {"@context": _CONTEXT, "@graph": list({each["@id"]: each for each in graph}.values())}


def _add_files(
    archive: zipfile.ZipFile, part: RunDocument, document: RunDocument, skipped: list[str]
) -> Iterator[Entity]:
    prefix = "" if part is document else f"launches/{part.key.rpartition('/')[2]}/"
    for file in part.files:
        name = prefix + file.path.removeprefix("gipfel/")
        try:
            content = file.read()
        except OSError as error:
            skipped.append(f"{name}: {error.strerror or error}")
            continue
        info = zipfile.ZipInfo(name, _EARLIEST)
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, content)
        yield {
            "@id": name,
            "@type": "File",
            "name": Path(name).name,
            "contentSize": str(len(content)),
            "encodingFormat": _TYPES.get(Path(name).suffix, "application/octet-stream"),
        }


def _action(document: RunDocument, files: "list[Entity] | tuple[()]") -> Entity:
    action: Entity = {
        "@id": f"#{document.key}",
        "@type": "CreateAction",
        "name": document.title,
        "agent": {"@id": _USER},
        "instrument": {"@id": _program_id(document)},
        "actionStatus": _ACTION_STATUS.get(document.status, _FAILED),
        "object": [{"@id": _parameter_id(document, name)} for name in document.parameters],
        "result": _references(files),
    }
    if document.tags.get("gipfel.reason") and action["actionStatus"] == _FAILED:
        action["error"] = document.tags["gipfel.reason"]
    for name, time_ms in (("startTime", document.started_ms), ("endTime", document.ended_ms)):
        if time_ms is not None:
            action[name] = _time(time_ms)
    if "image" in document.tags:
        action["containerImage"] = {"@id": _image_id(document)}
    return action


def _instruments(document: RunDocument) -> Iterator[Entity]:
    name = document.tags.get("program", "") or document.tags.get("gipfel.kind", "program")
    program: Entity = {"@id": _program_id(document), "@type": "SoftwareApplication", "name": one_line(name)}
    if "commit" in document.tags:
        program["softwareVersion"] = document.tags["commit"]
    yield program
    if "image" in document.tags:
        image: Entity = {
            "@id": _image_id(document),
            "@type": "ContainerImage",
            "name": document.tags["image"],
        }
        if "image_digest" in document.tags:
            image["sha256"] = document.tags["image_digest"].removeprefix("sha256:")
        yield image


def _parameters(document: RunDocument) -> Iterator[Entity]:
    for name, value in document.parameters.items():
        yield {
            "@id": _parameter_id(document, name),
            "@type": "PropertyValue",
            "name": name,
            "value": value,
        }


def _program_id(document: RunDocument) -> str:
    return f"#program-{document.key}"


def _image_id(document: RunDocument) -> str:
    return f"#image-{document.key}"


def _parameter_id(document: RunDocument, name: str) -> str:
    return f"#parameter-{document.key}-{name}"


def _references(entities: "list[Entity] | tuple[()]") -> list[Entity]:
    return [{"@id": each["@id"]} for each in entities]


def _time(time_ms: int | None) -> str:
    return "" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()
