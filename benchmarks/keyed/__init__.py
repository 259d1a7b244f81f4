"""`bench keyed`: rows unique by key, against MERGE INTO; loads that are repeated; batches into tables that grow."""
