"""Ops of DeepSeek's models."""
