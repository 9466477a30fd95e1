"""The other gateways: membership, authentication, requests that belong to them."""
