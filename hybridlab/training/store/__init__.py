"""What exists: runs, checkpoints, final models, imported models; found, locked, verified and written here."""
