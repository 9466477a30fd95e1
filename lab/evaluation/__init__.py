"""Measures inference on recorded traffic: the real brain, on a recorded clock, beside the recorded truth."""
