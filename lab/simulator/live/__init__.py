"""A workload against a real fleet: what the simulator plays, played, and measured as it measures."""
