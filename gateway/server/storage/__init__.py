"""State and usage that outlast the process."""
