"""The commands of `desist`, by subject. Each parses, calls the library, prints; none holds logic."""
