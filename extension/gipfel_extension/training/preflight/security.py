"""Check what is known of the image and the model files of a launch, by the site's policy."""

from contextlib import suppress
from pathlib import Path

from gipfel_cluster.model import GipfelError, pluralize

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
_MOST_MODELS = 8


class SecurityCheck:
    """Check the vulnerabilities of the image, and whether model files among the arguments are malicious."""

    name = "security"

    def run(self, context: Context) -> CheckOutcome | None:
        """Return the verdict on the image; None where neither site nor user configured advisories."""
        models = self._models(context)
        if models is not None:
            return models
        image = self._image(context)
        if not image:
            return None
        from ...gate.scan.verdict import image_verdict, keep_verdict  # noqa: PLC0415 - slow to import

        verdict = image_verdict(image, context.environment)
        with suppress(OSError):
            keep_verdict(context.folder, verdict)
        return CheckOutcome(check=self.name, verdict=verdict.level, message=verdict.line, fix=verdict.fix)

    def _image(self, context: Context) -> str:
        """Return the image of the launch's EDF, if it is to be judged."""
        if not context.plan.edf or not any(
            context.environment.get(name) for name in ("GIPFEL_ADVISORIES", "GIPFEL_SCAN_POLICY")
        ):
            return ""
        engine = context.plan.engine or "bubblewrap"
        try:
            return context.submission.edf(context.plan.edf, engine, Path(context.plan.directory)).image
        except GipfelError:
            # `EdfCheck` says why.
            return ""

    def _models(self, context: Context) -> CheckOutcome | None:
        """Return the outcome if a model file is malicious; all others load at the user's risk."""
        plan = context.plan
        paths = [
            Path(plan.directory, each) for each in plan.spec.arguments if Path(each).suffix in _MODEL_SUFFIXES
        ]
        files = [each for each in paths if each.is_file()][:_MOST_MODELS]
        if not files:
            return None
        from gipfel_cluster.runs import user_cache  # noqa: PLC0415

        from ...gate.scan.cache import ScanCache  # noqa: PLC0415
        from ...gate.scan.targets import scan_targets  # noqa: PLC0415
        from ...gate.scan.verdict import policy_of  # noqa: PLC0415

        cache = ScanCache(user_cache("scans", context.environment))
        try:
            document = scan_targets(files, advisories=None, max_age_s=0.0, cache=cache)
        except (GipfelError, OSError):
            return None
        bad = [item for item in document.items if item.verdict == "malicious"]
        if not bad:
            return None
        reason = bad[0].findings[0].message if bad[0].findings else ""
        refused = policy_of(context.environment) == "refuse"
        return CheckOutcome(
            check=self.name,
            verdict="fail" if refused else "warn",
            message=f"{pluralize(len(bad), 'malicious file')} among the arguments: {bad[0].path}: {reason}",
            fix="Don't load it: `gipfel scan` lists the reasons. Ask for the weights as safetensors.",
        )
