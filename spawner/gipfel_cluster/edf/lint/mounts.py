"""Mistakes about mounts."""

from collections.abc import Iterator

from ..entry import Entry
from ..model import Diagnostic, Mount
from .rule import MountRule, Rule, Subject


class HomeMount(Rule):
    """The whole home folder of the user."""

    code = "home-mount"
    reason = "the whole home folder is mounted"
    consequence = (
        "what ~/.local, ~/.cache and virtual environments hold for the host is used in the container too and "
        "breaks there, and the ssh hook's keys are hidden"
    )
    fix = "Mount the folders that the work needs."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry, mount in subject.mounts:
            if subject.home and mount.source == subject.home:
                yield self.at(entry)


class SameDestination(Rule):
    """Two mounts at one place."""

    code = "same-destination"
    reason = "{destination} is mounted from {first} and from {second}"
    consequence = "the later one hides the earlier one"
    fix = "Take one of them out."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        seen: dict[str, tuple[Entry, Mount]] = {}
        for entry, mount in subject.mounts:
            _, first = seen.setdefault(mount.destination, (entry, mount))
            if first != mount:
                yield self.at(entry, destination=mount.destination, first=first.source, second=mount.source)


class HiddenRoot(MountRule):
    """A mount over a folder without which nothing starts."""

    code = "hidden-system"
    reason = "a mount covers {destination} of the image"
    consequence = "the image's own programs and libraries there are gone"
    fix = "Choose another destination."
    _folders = frozenset(
        {"/", "/bin", "/lib", "/lib64", "/usr", "/etc", "/usr/lib", "/usr/lib64", "/usr/bin"}
    )

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return mount.destination in self._folders


class HiddenKernel(MountRule):
    """A mount over what the kernel shows."""

    code = "hidden-kernel"
    reason = "a mount covers {destination}, where the kernel shows processes and devices"
    consequence = (
        "nothing can be made there, so the container does not start, or programs see no GPU and no core"
    )
    fix = "Choose another destination; the container has its own /proc, /sys and /dev."
    _folders = ("/proc", "/sys")

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        inside = f"{mount.destination}/".startswith(tuple(f"{each}/" for each in self._folders))
        return (inside or mount.destination == "/dev") and mount.source != mount.destination


MOUNT_RULES: tuple[Rule, ...] = (HomeMount(), SameDestination(), HiddenRoot(), HiddenKernel())
