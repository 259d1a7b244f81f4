"""`penstock compact`, `vacuum` and `verify --rebuild`."""
