"""Measures: what a run came to, aggregated while it goes on.

`RunMeasures` is a `Sink`: it takes outcomes in as they happen and keeps sums, histograms and series of
bounded size, whatever the number of sessions. What grows is what lives: a few words for each session that
has not ended. `figures` makes numbers with names of it.
"""
