"""The proof of an export until its types are Delta logs: deleted together with `tables/export/proof`."""
