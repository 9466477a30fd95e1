"""Every policy on the papers' workloads, run by run: scenarios in TOML, stored runs, and the page that tells
of them.

`scenario` reads what is to be compared, `world` says what happens meanwhile, `store` keeps what was run,
`figures` and `compares` compare, `page` writes docs/design/results.md. `python -m benchmarks.results` does
all of it.
"""
