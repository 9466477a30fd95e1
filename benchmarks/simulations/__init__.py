"""What simulated benchmarks share: workloads, and where their knees are."""
