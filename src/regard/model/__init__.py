"""Models: attention, encoders, decoders, pools, and their interfaces."""
