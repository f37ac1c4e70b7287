"""Programs that tests run as separate processes."""
