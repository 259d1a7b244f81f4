"""The records that members append to the coordination log, and the state that every reader folds from them. Pure."""
