"""The ticks of a job's nodes come together on its head node, over ZeroMQ with keys of the job."""
