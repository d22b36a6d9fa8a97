"""Programs that a hook runs inside a container, with the runtime's interpreter."""
