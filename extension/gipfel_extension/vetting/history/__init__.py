"""What earlier vetting runs said of each node: kept per cluster, and shared if the user agrees."""

from .baselines import Baseline, baselines_of, usual_figure
from .borderline import recent_bad, recent_fitness, settle_borderline
from .entry import HistoryEntry, VettingRecord, record_of
from .exclusions import Exclusion, Exclusions
from .finished import keep_report, record_of_report
from .share import Shared, SharedReport, consents, set_consent, share_record
from .skip import recently_vetted
from .store import History, HistoryContent, history_root

__all__ = [
    "Baseline",
    "Exclusion",
    "Exclusions",
    "History",
    "HistoryContent",
    "HistoryEntry",
    "Shared",
    "SharedReport",
    "VettingRecord",
    "baselines_of",
    "consents",
    "history_root",
    "keep_report",
    "recent_bad",
    "recent_fitness",
    "recently_vetted",
    "record_of",
    "record_of_report",
    "set_consent",
    "settle_borderline",
    "share_record",
    "usual_figure",
]
