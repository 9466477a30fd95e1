"""What every test may use: the shared real engines, and the rule that CI skips nothing."""

pytest_plugins = ["tests.hangs", "tests.ci_skips", "tests.engines"]
