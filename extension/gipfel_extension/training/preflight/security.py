"""Check what is known of the image and the model files of a launch, by the site's policy."""

from contextlib import suppress
from pathlib import Path

from gipfel_cluster.image_verdict import Level, keep_verdict, policy_of
from gipfel_cluster.model import GipfelError

from .context import CheckOutcome, Context

#: Files that programs load as models, by their endings.
_MODEL_SUFFIXES = frozenset(
    [
        ".pt",
        ".pth",
        ".bin",
        ".pkl",
        ".pickle",
        ".ckpt",
        ".joblib",
        ".npy",
        ".npz",
        ".h5",
        ".keras",
        ".onnx",
        ".gguf",
    ]
)
_MOST_FILES = 8
_ORDER = ("pass", "unknown", "warn", "fail")


class SecurityCheck:
    """Check the vulnerabilities of the image, model files among the arguments, and a notebook that runs."""

    name = "security"

    def run(self, context: Context) -> CheckOutcome | None:
        """Return the worst outcome; None where verdicts are not configured, and no file is suspect."""
        found = [each for each in (self._files(context), self._verdict(context)) if each is not None]
        if not found:
            return None
        found.sort(key=lambda each: _ORDER.index(each.verdict))
        first = found[-1]
        return first.model_copy(update={"message": " ".join(each.message for each in reversed(found))})

    def _verdict(self, context: Context) -> CheckOutcome | None:
        """Judge the image, and keep the verdict in the launch's directory."""
        image = self._image(context)
        if not image:
            return None
        try:
            verdict = context.submission.image_verdict(image)
        except GipfelError as error:
            level: Level = "fail" if policy_of(context.environment) == "refuse" else "unknown"
            return CheckOutcome(check=self.name, verdict=level, message=error.problem, fix=error.fix)
        if verdict is None:
            return None
        with suppress(OSError):
            keep_verdict(context.folder, verdict)
        return CheckOutcome(check=self.name, verdict=verdict.level, message=verdict.line, fix=verdict.fix)

    def _image(self, context: Context) -> str:
        """Return the image of the launch's EDF; empty without one."""
        if not context.plan.edf:
            return ""
        engine = context.plan.engine or "bubblewrap"
        try:
            return context.submission.edf(context.plan.edf, engine, Path(context.plan.directory)).image
        except GipfelError:
            # `EdfCheck` says why.
            return ""

    def _files(self, context: Context) -> CheckOutcome | None:
        """Judge model files among the arguments, and a notebook that runs; None where none is suspect."""
        plan = context.plan
        paths = [
            Path(plan.directory, each) for each in plan.spec.arguments if Path(each).suffix in _MODEL_SUFFIXES
        ]
        if plan.spec.kind == "notebook":
            paths.append(Path(plan.target))
        files = [each for each in paths if each.is_file()][:_MOST_FILES]
        if not files:
            return None
        from ...gate.scan.verdict import judge_files  # noqa: PLC0415 - slow to import

        found = judge_files(files, context.environment)
        if found is None:
            return None
        return CheckOutcome(check=self.name, verdict=found.level, message=found.line, fix=found.fix)
