"""What tenants share and what bounds them."""
