"""The fleet: its members, and the work that each may take."""
