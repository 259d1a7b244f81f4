"""How an export stands: types, days and alerts."""
