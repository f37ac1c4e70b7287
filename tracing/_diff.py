"""What is different between two recordings."""
