"""Cost: how long will this take on that replica?

A profile describes a replica; the roofline gives the time of an engine step, and of turns and sessions that
run alone. The estimator predicts turns among others, and learns from observations.
"""
