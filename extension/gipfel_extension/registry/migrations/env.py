"""Alembic's environment script: runs the migrations on the connection of `schema.open_database`."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
