"""From rules to nodes: cases and their steps, what may be done at all, and the commands that do it."""
