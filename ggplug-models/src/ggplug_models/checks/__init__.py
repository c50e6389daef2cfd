"""What callers give, checked: numbers, sequences, callables, token ids; and libraries that only some things need."""
