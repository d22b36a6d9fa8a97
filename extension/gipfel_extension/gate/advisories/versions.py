"""Compare versions by the scheme of each OSV ecosystem.

`compare` returns -1, 0 or 1, and raises `ValueError` for a version that is not valid in its scheme: such a
package is reported as not judged, never as unaffected.
"""

import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from packaging.version import InvalidVersion, Version

_MAX_CHARACTERS = 256


def compare(ecosystem: str, one: str, other: str) -> int:
    """Return -1, 0 or 1 as the first version is before, equal to or after the other one.

    Raises
    ------
    ValueError
        The ecosystem's order is not known, or a version is not valid in it.
    """
    family = ecosystem.partition(":")[0]
    if family not in _SCHEMES:
        raise ValueError(f"the order of versions of {family[:40]!r} is not known")
    if max(len(one), len(other)) > _MAX_CHARACTERS:
        raise ValueError("a version is too long")
    return _SCHEMES[family](one.strip(), other.strip())


def compare_dpkg(one: str, other: str) -> int:
    """Compare Debian versions. Source: Debian Policy, 5.6.12; ``lib/dpkg/version.c``."""
    (epoch, upstream, revision), (epoch2, upstream2, revision2) = _dpkg_parts(one), _dpkg_parts(other)
    return _sign(epoch, epoch2) or _dpkg_part(upstream, upstream2) or _dpkg_part(revision, revision2)


_DPKG = re.compile(r"(?:(\d+):)?([A-Za-z0-9.+~:-]+?)(?:-([A-Za-z0-9+.~]+))?")


def _dpkg_parts(text: str) -> tuple[int, str, str]:
    match = _DPKG.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a version of Debian")
    return int(match[1] or 0), match[2], match[3] or ""


def _dpkg_part(one: str, other: str) -> int:
    for left, right in zip_longest(_runs(one), _runs(other), fillvalue=("", "")):
        if order := _sign(_dpkg_weights(left[0]), _dpkg_weights(right[0])):
            return order
        if order := _sign(int(left[1] or 0), int(right[1] or 0)):
            return order
    return 0


def _runs(text: str) -> list[tuple[str, str]]:
    """Return pairs of a run of non-digits and the run of digits after it."""
    return re.findall(r"(\D*)(\d*)", text)[:-1] if text else []


def _dpkg_weights(text: str) -> list[int]:
    # A tilde sorts before the end, letters before everything else.
    weights = [-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 256 for c in text]
    return [*weights, 0]


def compare_rpm(one: str, other: str) -> int:
    """Compare ``[epoch:]version[-release]`` of rpm. Source: ``rpmio/rpmvercmp.c`` of rpm 4.18."""
    left, right = _rpm_parts(one), _rpm_parts(other)
    order = _sign(left[0], right[0]) or _rpm_part(left[1], right[1])
    if order or not (left[2] and right[2]):
        # An advisory that names a version without a release applies to every release of it.
        return order
    return _rpm_part(left[2], right[2])


def _rpm_parts(text: str) -> tuple[int, str, str]:
    epoch, colon, rest = text.rpartition(":")
    version, _, release = rest.partition("-")
    if not version or (colon and not epoch.isdecimal()) or any(each.isspace() for each in text):
        raise ValueError(f"{text[:80]!r} is not a version of rpm")
    return int(epoch or 0), version, release


def _rpm_part(one: str, other: str) -> int:
    left, right = _rpm_segments(one), _rpm_segments(other)
    for a, b in zip_longest(left, right, fillvalue=""):
        if a == b:
            continue
        if order := _rpm_mark(a, b):
            return order
        if not a or not b:
            # The version with more segments is newer.
            return 1 if a else -1
        if a.isdigit() != b.isdigit():
            return 1 if a.isdigit() else -1
        order = _sign(int(a), int(b)) if a.isdigit() else _sign(a, b)
        if order:
            return order
    return 0


def _rpm_mark(a: str, b: str) -> int:
    """Compare where one side has a tilde, which sorts before the end, or a caret, which sorts after it."""
    if "~" in (a, b):
        return -1 if a == "~" else 1
    if "^" not in (a, b):
        return 0
    if a == "^":
        return 1 if not b else -1
    return -1 if not a else 1


def _rpm_segments(text: str) -> list[str]:
    return re.findall(r"[0-9]+|[A-Za-z]+|~|\^", text)


_APK = re.compile(
    r"(?P<numbers>\d+(?:\.\d+)*)(?P<letter>[a-z]?)(?P<suffixes>(?:_(?:alpha|beta|pre|rc|cvs|svn|git|hg|p)\d*)*)"
    r"(?:~[0-9a-f]+)?(?:-r(?P<revision>\d+))?"
)
_APK_SUFFIXES = {"alpha": -4, "beta": -3, "pre": -2, "rc": -1, "cvs": 1, "svn": 2, "git": 3, "hg": 4, "p": 5}


def compare_apk(one: str, other: str) -> int:
    """Compare versions of Alpine. Source: ``src/version.c`` of apk-tools 2.14."""
    left, right = _apk_match(one), _apk_match(other)
    first, second = left["numbers"].split("."), right["numbers"].split(".")
    for index, (a, b) in enumerate(zip_longest(first, second)):
        if a is None or b is None:
            return -1 if a is None else 1
        # After the first number, a number with a leading zero is compared as a fraction, digit by digit.
        as_text = index > 0 and (a.startswith("0") or b.startswith("0"))
        order = _sign(a.rstrip("0"), b.rstrip("0")) if as_text else _sign(int(a), int(b))
        if order:
            return order
    return (
        _sign(left["letter"], right["letter"])
        or _apk_suffixes(left["suffixes"], right["suffixes"])
        or _sign(int(left["revision"] or 0), int(right["revision"] or 0))
    )


def _apk_match(text: str) -> re.Match[str]:
    match = _APK.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a version of Alpine")
    return match


def _apk_suffixes(one: str, other: str) -> int:
    def ranks(text: str) -> list[tuple[int, int]]:
        return [(_APK_SUFFIXES[n], int(d or 0)) for n, d in re.findall(r"_([a-z]+)(\d*)", text)]

    # A version without a suffix sorts after _rc and before _cvs.
    for a, b in zip_longest(ranks(one), ranks(other), fillvalue=(0, 0)):
        if a != b:
            return _sign(a, b)
    return 0


_SEMVER = re.compile(
    r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?((?:\.\d+)*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
)


def compare_semver(one: str, other: str) -> int:
    """Compare semantic versions. Source: semver.org 2.0.0, 11; a leading ``v`` may precede it."""
    (numbers, pre), (numbers2, pre2) = _semver_parts(one), _semver_parts(other)
    if numbers != numbers2 or pre == pre2:
        return _sign(numbers, numbers2)
    if not pre or not pre2:
        return 1 if not pre else -1
    return _sign(_identifiers(pre), _identifiers(pre2))


def _semver_parts(text: str) -> tuple[list[int], str]:
    match = _SEMVER.fullmatch(text.removeprefix("go"))
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a semantic version")
    further = [int(each) for each in match[4].split(".") if each]
    numbers = [int(match[1]), int(match[2] or 0), int(match[3] or 0), *further]
    while len(numbers) > 3 and numbers[-1] == 0:
        numbers.pop()
    return numbers, match[5] or ""


def _identifiers(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(each), "") if each.isdecimal() else (1, 0, each) for each in text.split(".")]


def compare_pypi(one: str, other: str) -> int:
    """Compare Python versions. Source: PEP 440, as `packaging` implements it."""
    try:
        return _sign(Version(one), Version(other))
    except InvalidVersion as error:
        raise ValueError(str(error)[:120]) from error


def _sign(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


_SCHEMES: dict[str, Callable[[str, str], int]] = {
    **dict.fromkeys(("Debian", "Ubuntu"), compare_dpkg),
    **dict.fromkeys(
        ("Red Hat", "Rocky Linux", "AlmaLinux", "SUSE", "openSUSE", "Mageia", "openEuler", "Azure Linux"),
        compare_rpm,
    ),
    **dict.fromkeys(("Alpine", "Wolfi", "Chainguard", "Alpaquita"), compare_apk),
    **dict.fromkeys(("npm", "Go", "crates.io"), compare_semver),
    "PyPI": compare_pypi,
}
