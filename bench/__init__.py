"""The suite, the fixtures, peers, the timing protocol, and recorded results."""
