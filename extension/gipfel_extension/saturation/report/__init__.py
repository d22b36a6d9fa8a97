"""Report of a scored run as one self-contained HTML file, which needs no network and no server."""

from .page import ReportContent, ReportFigure, record_lines, report_page

__all__ = ["ReportContent", "ReportFigure", "record_lines", "report_page"]
