"""How requests over HTTP are read, passed to what answers them, and answered."""
