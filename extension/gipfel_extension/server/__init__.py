"""What a notebook server keeps while it runs: its run, its recorders, one feed for everybody who looks."""
