"""Read the packages of a directory, a SquashFS image or an OCI archive without running anything of it."""
