"""Models of a launch's directory: its spec, its plan and its state."""
