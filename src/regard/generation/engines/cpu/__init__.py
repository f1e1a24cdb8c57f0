"""The C++ engine: compilation, weight layout, and the decoder and encoder that call it."""
