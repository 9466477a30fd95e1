"""Cost: how long will this take on that replica?

A profile says what a replica is made of; the roofline turns it into the time of an engine step, and of
turns and sessions that run alone. The estimator predicts turns among others, and is corrected by what
is then observed.
"""
