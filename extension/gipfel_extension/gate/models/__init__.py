"""Judge model, data and notebook files without loading them; `scan_stream` is the entry point."""
