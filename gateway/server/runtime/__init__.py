"""The process: tasks, clocks, memory, worker processes."""
