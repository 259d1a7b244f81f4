"""`penstock claims`."""
