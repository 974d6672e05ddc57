"""What everything stands on: the array types, masked means, functions by name, controllers and the table of mesh
axes."""
