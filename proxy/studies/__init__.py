"""What is measured on the built-in reasoner: paired demonstrations, its own figures, live against replay."""
