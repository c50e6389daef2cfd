"""Functions over Python and the operating system: files, signals, frames, imports."""
