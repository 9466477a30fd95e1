"""`turnpike history`: a process that follows gateways' records, keeps them in SQLite and answers for them."""
