"""Mistakes about mounts."""

from collections.abc import Iterator

from .document import Entry
from .model import Diagnostic, Mount
from .rule import MountRule, Rule, Subject
from .rules_values import SUFFIXES

#: Where clusters and Linux keep the home directories of all users.
_HOMES = ("/users", "/home")
#: ``sqsh`` is the Container Engine's, the rest is what mount(8) takes for every file system, and Enroot.
_FLAGS = frozenset(
    {
        *("sqsh", "ro", "rw", "bind", "rbind", "defaults", "remount", "silent", "loud", "nofail"),
        *("suid", "nosuid", "dev", "nodev", "exec", "noexec", "sync", "async", "dirsync", "mand", "nomand"),
        *("atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime"),
        *("nostrictatime", "lazytime", "nolazytime", "iversion", "noiversion"),
        *("private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable"),
        *("auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"),
        *("x-create=auto", "x-create=dir", "x-create=file", "x-move", "x-detach"),
    }
)


class HomeMount(Rule):
    """The whole home directory of the user."""

    code = "home-mount"
    reason = "the whole home directory is mounted{more}"
    consequence = (
        "what ~/.local, ~/.cache and virtual environments hold for the host is used in the container too and "
        "breaks there, and the ssh hook's keys are hidden"
    )
    fix = "Mount the directories that the work needs."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        # Of all homes only those hurt that hide the keys of the ssh hook.
        parent = subject.home.rpartition("/")[0]
        above = {parent, *_HOMES} - {"", "/"} if subject.hook("ssh") else set()
        for entry, mount in subject.mounts:
            if subject.home and mount.source == subject.home:
                yield self.at(entry, more="")
            elif mount.source in above and mount.source == mount.destination:
                yield self.at(entry, more=" with those of all users")


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
    """A mount over a directory without which nothing starts."""

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
    _folders = ("/proc/", "/sys/")

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        inside = f"{mount.destination}/".startswith(self._folders)
        return (inside or mount.destination == "/dev") and mount.source != mount.destination


class CoveredMount(Rule):
    """A mount that hides one that was made inside of it before."""

    code = "covered-mount"
    reason = "{destination} is mounted over {inner}, which is mounted before it"
    consequence = "what was mounted at {inner} can't be seen"
    fix = "Mount {destination} first."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        if len(subject.mounts) < 2:
            return
        earlier: dict[str, None] = {}
        for entry, mount in subject.mounts:
            below, inner = f"{mount.destination.rstrip('/')}/", ""
            for each in earlier:
                if each.startswith(below) and each != below:
                    inner = each
                    break
            if inner and mount.destination not in earlier and mount.source != "umount":
                yield self.at(entry, destination=mount.destination, inner=inner)
            earlier[mount.destination] = None


class SquashfsFile(MountRule):
    """An image's file, of which the content was meant."""

    code = "squashfs-file"
    dialects = ("ce",)
    reason = "the file itself is seen at {destination}, not what is in it"
    consequence = "there is no directory with its content"
    fix = "Add ':sqsh'."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        if not mount.source.endswith(SUFFIXES):
            return False
        return "sqsh" not in mount.flags and not mount.destination.endswith(SUFFIXES)


class ConflictingFlags(MountRule):
    """Two flags of which each undoes the other."""

    code = "conflicting-flags"
    reason = "the flags {flags} contradict each other"
    consequence = "the engine decides which of them counts"
    fix = "Take one of them out."
    _pairs = (("ro", "rw"), ("suid", "nosuid"), ("dev", "nodev"), ("exec", "noexec"), ("sync", "async"))

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return len(mount.flags) > 1 and bool(self._conflict(mount))

    def words(self, mount: Mount) -> dict[str, str]:  # noqa: D102
        return {"flags": " and ".join(self._conflict(mount))}

    def _conflict(self, mount: Mount) -> tuple[str, ...]:
        return next((pair for pair in self._pairs if set(pair) <= set(mount.flags)), ())


class UnknownFlag(MountRule):
    """A flag that neither Linux nor Enroot has."""

    code = "mount-flag"
    dialects = ("ce", "pyxis")
    reason = "{flag!r} is not a flag that Enroot knows"
    consequence = "it is handed on to the file system, which may refuse the mount"
    fix = "Flags are joined by '+': ro+private."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return not _FLAGS.issuperset(mount.flags) and bool(self._unknown(mount))

    def words(self, mount: Mount) -> dict[str, str]:  # noqa: D102
        return {"flag": self._unknown(mount)}

    def _unknown(self, mount: Mount) -> str:
        # A file system in memory takes settings such as size=10G.
        given = [each for each in mount.flags if not (mount.source == "tmpfs" and "=" in each)]
        return next((each for each in given if each not in _FLAGS), "")


MOUNT_RULES: tuple[Rule, ...] = (
    HomeMount(),
    SameDestination(),
    CoveredMount(),
    HiddenRoot(),
    HiddenKernel(),
    SquashfsFile(),
    ConflictingFlags(),
    UnknownFlag(),
)
