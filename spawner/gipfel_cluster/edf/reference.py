"""Names of images in a registry: ``[USER@][REGISTRY#]IMAGE[:TAG]``, with a slash for ``#``, or a digest."""

import re

_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}")
_NAME = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*")
_REGISTRY = re.compile(_HOST)
_SCHEME = re.compile(r"[a-z]+://")
_LONGEST = 255


def reference_problem(reference: str) -> str:
    """Say what is wrong with the name of an image, or nothing where a registry could have it.

    Source: OCI distribution specification 1.1 (names, tags, digests), Enroot's import for ``@`` and ``#``.
    """
    if scheme := _SCHEME.match(reference):
        return f"{scheme[0]!r} is not part of an image's name"
    rest, at, digest = reference.rpartition("@")
    if not at or ":" not in digest.partition("/")[0] or "#" in digest or not digest.startswith("sha"):
        rest, digest = reference, ""
    user, at, rest = rest.rpartition("@")
    if at and (not user or not user.isprintable() or " " in user):
        return f"{user!r} can't be a user's name"
    registry, hash_, name = rest.rpartition("#")
    if hash_ and not _REGISTRY.fullmatch(registry):
        return f"{registry!r} can't be a registry"
    return _name_problem(name, digest)


def _name_problem(name: str, digest: str) -> str:
    last = name.rpartition("/")[2]
    if ":" in last:
        name, _, tag = name.rpartition(":")
        if not _TAG.fullmatch(tag):
            return f"{tag!r} can't be a tag"
    if digest and not _DIGEST.fullmatch(digest):
        return f"{digest!r} is no digest"
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        return f"{name!r} can't be an image" + (
            ": a name is in small letters" if name.lower() != name else ""
        )
    return ""
