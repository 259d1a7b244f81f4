"""What members say to each other in the coordination log, and the state that every reader folds from it. Pure."""
