"""What the front ends of Keras share, whatever its version and backend. Imports neither."""
