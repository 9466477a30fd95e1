"""The tool probe: when an agent's tools run, inferred from the calls in one response and their results
in a later request."""
