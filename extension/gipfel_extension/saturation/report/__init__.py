"""A scored run as one HTML file that needs nothing else: no network, no server, no other file."""

from .page import ReportContent, ReportFigure, report_page
from .record_lines import record_lines

__all__ = ["ReportContent", "ReportFigure", "record_lines", "report_page"]
