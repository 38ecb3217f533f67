"""Random requests, connections, kills and stops, and the checks of what must hold nevertheless."""
