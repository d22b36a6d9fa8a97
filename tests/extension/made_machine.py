"""Machine of a test's own that the probes of gipfel doctor examine."""

from pathlib import Path

from gipfel_cluster.scheduler import SlurmPresence
from gipfel_extension.doctor.examine import Answer, Machine

NO_COMMANDS = SlurmPresence(commands=False, problem="Slurm's commands are not on PATH.")
NO_CONFIGURATION = SlurmPresence(commands=True, problem="Slurm is not configured.")
CONFIGURED = SlurmPresence(commands=True, source="/etc/slurm/slurm.conf")
SINFO = (
    "gpu|gpu*|up|1-00:00:00|4|idle|gpu:gh200:4|gpu:gh200:0|01:00:00|288|857000|\n"
    "debug|debug|up|00:30:00|1|idle|(null)|(null)|00:10:00|64|257000|\n"
)


class Made:
    """A machine of a test's own: its commands by their first words, its programs, its files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answers: dict[str, Answer] = {}
        self.programs: set[str] = set()
        self.presence = NO_COMMANDS

    def file(self, path: str, text: str = "") -> None:
        there = self.root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text)

    def machine(self, *, uid: int = 1000, engines=None, **environment: str) -> Machine:
        def run(argv):
            said = " ".join(argv)
            known = (answer for begins, answer in self.answers.items() if said.startswith(begins))
            return next(known, Answer(problem=f"{argv[0]} can't be run"))

        return Machine(
            environment=environment,
            run=run,
            which=lambda name: f"/usr/bin/{name}" if name in self.programs else None,
            slurm=lambda: self.presence,
            root=self.root,
            uid=uid,
            user="ada",
            home="/home/ada",
            engines=engines or {},
            python="python3",
        )

    def slurm(self) -> None:
        self.presence = CONFIGURED
        self.answers |= {
            "sinfo --version": Answer(output="slurm 24.11.1\n"),
            "sinfo --noheader": Answer(output=SINFO),
        }
