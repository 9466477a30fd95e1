"""Who a caller is, and what it may do: keys, tokens, tenants, addresses."""
