"""What core asks of Python and the operating system: files, signals, frames, imports."""
