"""The files that the ledger of an export orders about."""
