"""The built-in kinds of figures, a module for each; the file name is the name in `plot.kind`."""
