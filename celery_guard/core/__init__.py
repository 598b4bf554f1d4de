"""What follows from what: pure rules, standard library only, no clock, no I/O."""
