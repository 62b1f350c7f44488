"""From records to tables: pure functions, no training."""
