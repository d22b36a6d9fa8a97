"""Judge files of models, data and notebooks without loading them; `scan_stream` is the way in."""
