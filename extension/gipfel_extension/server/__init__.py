"""State of a running notebook server: its run, its recorders, one feed for all pages; without tornado."""
