"""What the commands of these tests look after."""
