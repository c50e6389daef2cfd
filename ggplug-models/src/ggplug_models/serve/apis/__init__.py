"""The APIs, one module each: their bodies, what these ask for, and how answers are written."""
