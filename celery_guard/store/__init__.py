"""What is true: the only room that speaks SQL."""
