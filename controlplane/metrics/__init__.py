"""The figures that operators watch: declared in `figures`, kept by each process in files that
`values` describes, and served for all processes of a host by `manage.py metrics`."""
