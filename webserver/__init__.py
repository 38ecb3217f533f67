"""How gunicorn serves the console and the API, of which it knows nothing."""
