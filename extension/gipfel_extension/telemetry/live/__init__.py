"""The live stream of a run: ticks of each recorder, through the head node, to the table that a view draws."""
