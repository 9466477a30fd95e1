"""The tool probe: run times of an agent's tools, from the calls in a response and their results in a
request."""
