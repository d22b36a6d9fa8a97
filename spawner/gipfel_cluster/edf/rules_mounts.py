"""Lint rules about mounts."""

from collections.abc import Iterator

from .document import Entry
from .model import Diagnostic, Mount
from .rule import LintContext, MountRule, Rule
from .rules_values import SQUASHFS_SUFFIXES

#: The usual parents of home directories.
_HOMES = ("/users", "/home")
#: ``sqsh`` of the Container Engine, and the flags of mount(8) for every file system and of Enroot.
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
    """A mount of the user's whole home directory."""

    code = "home-mount"
    reason = "the whole home directory is mounted{more}"
    consequence = (
        "files in ~/.local, ~/.cache and virtual environments that were made for the host are used in the "
        "container too and fail there, and the ssh hook's keys are hidden"
    )
    fix = "Mount the directories that the work needs."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        # A mount of all homes is harmful only if it hides the keys of the ssh hook.
        parent = context.home.rpartition("/")[0]
        above = {parent, *_HOMES} - {"", "/"} if context.hook_is_enabled("ssh") else set()
        for entry, mount in context.mounts:
            if context.home and mount.source == context.home:
                yield self.diagnostic(entry, more="")
            elif mount.source in above and mount.source == mount.destination:
                yield self.diagnostic(entry, more=" with those of all users")


class SameDestination(Rule):
    """Two mounts at the same destination."""

    code = "same-destination"
    reason = "{destination} is mounted from {first} and from {second}"
    consequence = "the later one hides the earlier one"
    fix = "Remove one of them."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        mounted: dict[str, tuple[Entry, Mount]] = {}
        for entry, mount in context.mounts:
            _, first = mounted.setdefault(mount.destination, (entry, mount))
            if first != mount:
                yield self.diagnostic(
                    entry, destination=mount.destination, first=first.source, second=mount.source
                )


class HiddenRoot(MountRule):
    """A mount over a directory that programs need to start."""

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
    """A mount over a file system of the kernel."""

    code = "hidden-kernel"
    reason = "a mount covers {destination}, where the kernel shows processes and devices"
    consequence = (
        "no mount point can be created there, so the container does not start, or programs see no GPU and no "
        "core"
    )
    fix = "Choose another destination; the container has its own /proc, /sys and /dev."
    _folders = ("/proc/", "/sys/")

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        inside = f"{mount.destination}/".startswith(self._folders)
        return (inside or mount.destination == "/dev") and mount.source != mount.destination


class CoveredMount(Rule):
    """A mount that hides an earlier mount below its destination."""

    code = "covered-mount"
    reason = "{destination} is mounted over {inner}, which is mounted before it"
    consequence = "the content of {inner} is hidden"
    fix = "Mount {destination} first."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        if len(context.mounts) < 2:
            return
        earlier: dict[str, None] = {}
        for entry, mount in context.mounts:
            below, inner = f"{mount.destination.rstrip('/')}/", ""
            for each in earlier:
                if each.startswith(below) and each != below:
                    inner = each
                    break
            if inner and mount.destination not in earlier and mount.source != "umount":
                yield self.diagnostic(entry, destination=mount.destination, inner=inner)
            earlier[mount.destination] = None


class SquashfsFile(MountRule):
    """A SquashFS file mounted without ``:sqsh``, so that its content is not visible."""

    code = "squashfs-file"
    dialects = ("ce",)
    reason = "{destination} is the file itself, not its content"
    consequence = "there is no directory with its content"
    fix = "Add ':sqsh'."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        if not mount.source.endswith(SQUASHFS_SUFFIXES):
            return False
        return "sqsh" not in mount.flags and not mount.destination.endswith(SQUASHFS_SUFFIXES)


class ConflictingFlags(MountRule):
    """Two flags that contradict each other."""

    code = "conflicting-flags"
    reason = "the flags {flags} contradict each other"
    consequence = "it depends on the engine which of them takes effect"
    fix = "Remove one of them."
    _pairs = (("ro", "rw"), ("suid", "nosuid"), ("dev", "nodev"), ("exec", "noexec"), ("sync", "async"))

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return len(mount.flags) > 1 and bool(self._conflict(mount))

    def fields(self, mount: Mount) -> dict[str, str]:  # noqa: D102
        return {"flags": " and ".join(self._conflict(mount))}

    def _conflict(self, mount: Mount) -> tuple[str, ...]:
        return next((pair for pair in self._pairs if set(pair) <= set(mount.flags)), ())


class UnknownFlag(MountRule):
    """A flag that neither Linux nor Enroot has."""

    code = "mount-flag"
    dialects = ("ce", "pyxis")
    reason = "{flag!r} is not a flag that Enroot knows"
    consequence = "it is passed to the file system, which may refuse the mount"
    fix = "Join flags with '+': ro+private."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return not _FLAGS.issuperset(mount.flags) and bool(self._unsupported(mount))

    def fields(self, mount: Mount) -> dict[str, str]:  # noqa: D102
        return {"flag": self._unsupported(mount)}

    def _unsupported(self, mount: Mount) -> str:
        # A tmpfs accepts settings such as size=10G.
        flags = [each for each in mount.flags if not (mount.source == "tmpfs" and "=" in each)]
        return next((each for each in flags if each not in _FLAGS), "")


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
