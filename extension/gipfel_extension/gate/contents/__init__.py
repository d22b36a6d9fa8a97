"""Find risks in the files of directories and images: permissions, secrets, distributions without support."""
