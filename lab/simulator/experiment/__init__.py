"""Experiments: policies × loads × seeds on one workload, and what they came to.

`draw` makes a run's sessions and arrivals, `trial` plays one run, `parallel` plays many, `results` puts them
together.
"""
