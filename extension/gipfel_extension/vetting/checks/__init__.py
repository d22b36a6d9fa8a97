"""The checks: one file and one class each; README.md says how to add one."""
