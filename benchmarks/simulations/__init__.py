"""What `benchmarks.run` consists of: workloads, their knees, comparisons, and the page that tells of them."""
