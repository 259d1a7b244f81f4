"""What kinds share whose rows and positions are in one Delta table: its landing, facts, replays and vacuum."""
