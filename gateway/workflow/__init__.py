"""The workflow view: which requests belong to one agent session."""
