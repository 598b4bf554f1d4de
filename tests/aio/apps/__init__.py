"""What the workers of these tests run."""
