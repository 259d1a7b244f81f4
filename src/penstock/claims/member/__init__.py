"""One member of a group: what it decides to claim and release, and the thread and topics through which it does so."""
