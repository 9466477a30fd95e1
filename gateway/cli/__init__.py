"""Commands beside `serve`."""
