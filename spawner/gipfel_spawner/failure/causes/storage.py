"""Full disks and folders that are in the way."""

from .cause import Cause

STORAGE = (
    Cause(
        name="over-quota",
        reason="Your quota is used up: nothing more can be written.",
        fix="Delete or move files (the site's quota command shows where), then start again.",
        patterns=(r"disk quota exceeded", r"\bEDQUOT\b"),
    ),
    Cause(
        name="disk-full",
        reason="A disk is full: nothing more can be written.",
        fix="Free space in your home folder; where it is the node's own disk, start again on another node.",
        # Namespaces that are used up say the same.
        patterns=(
            r"^(?!.*(?:unshare|namespace)).*no space left on device",
            r"\bENOSPC\b",
            r"database or disk is full",
        ),
    ),
    Cause(
        name="read-only-home",
        reason="A folder that the server writes to is read-only: {path}",
        fix="Mount it writable in the environment, or set workdir to a folder that is.",
        patterns=(r"read-only file system:? '?(?P<path>/[^'\s]*)",),
    ),
    Cause(
        name="log-unwritable",
        reason="Slurm could not open the job's log {path}.",
        fix="Check that your home folder is there on the node, writable and within its quota.",
        patterns=(r"could not open (?:stdout|stderr) file (?P<path>\S+):",),
    ),
)
