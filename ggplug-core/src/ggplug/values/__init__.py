"""The values of tensors: how they come in and out, which are not there yet, and when an address of one is stale."""
