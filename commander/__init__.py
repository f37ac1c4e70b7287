"""The engine: nodes, the tree they make, their scheduling, failures and cancellation."""
