"""The commands for papers, and what they print."""
