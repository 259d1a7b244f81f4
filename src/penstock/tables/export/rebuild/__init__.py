"""A lost ledger, made again."""
