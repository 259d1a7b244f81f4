"""The decoder of Telegraf's JSON."""
