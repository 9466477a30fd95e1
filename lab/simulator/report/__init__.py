"""Reports: results for people. `text` prints a table, `page` writes HTML that needs nothing from
elsewhere."""
