"""Ops on sliding windows of planes: pooling, depthwise convolutions, gradients."""
