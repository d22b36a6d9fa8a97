"""All ranks of a job: what is known of each, where each runs, and figures over all of them."""
