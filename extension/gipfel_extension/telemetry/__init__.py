"""Samples of GPUs and host: sources, recorder, segments, live stream and figures; nothing of a web server."""
