"""What tests of the cost model and measurements of it use."""
