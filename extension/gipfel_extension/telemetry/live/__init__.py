"""The live stream of a run: from the ticks of each recorder through the head node to the table of a view."""
