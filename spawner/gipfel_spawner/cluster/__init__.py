"""Clusters of a hub: their settings, one scheduler and watcher for each, and cached answers for all pages."""
