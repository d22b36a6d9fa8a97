"""Who runs what where: the administrators' page, its data, and what is written down."""
