"""Notebooks through papermill: every cell saved as it ends, resumed where they stopped.

`run.run_notebook` runs one here; ``papermill --engine gipfel`` is the same engine. Nothing is imported here,
because papermill alone takes a second.
"""
