"""A scored run as one HTML file that needs nothing else: no network, no server, no other file."""

from .content import ReportContent, ReportFigure
from .page import report_page
from .record_lines import record_lines

__all__ = ["ReportContent", "ReportFigure", "record_lines", "report_page"]
