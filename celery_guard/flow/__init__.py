"""What happens: submit → dispatch → attempt → settle → deliver."""
