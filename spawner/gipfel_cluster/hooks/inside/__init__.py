"""Programs that a hook runs inside a container, by the runtime's interpreter."""
