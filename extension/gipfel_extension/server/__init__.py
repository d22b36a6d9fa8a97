"""State of a notebook server while it runs: its run, its recorders, one feed for all pages; no tornado."""
