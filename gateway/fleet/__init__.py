"""The fleet: who is a member of it, and what may be sent to each member."""
