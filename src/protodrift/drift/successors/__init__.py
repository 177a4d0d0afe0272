"""What came after SDC: estimators with the same interface."""
