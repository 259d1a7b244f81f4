"""The ledger of an export: its commit log."""
