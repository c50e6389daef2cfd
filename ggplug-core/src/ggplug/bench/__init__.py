"""What ``ggplug bench`` measures of devices, and of the framework itself: a module an instrument."""
