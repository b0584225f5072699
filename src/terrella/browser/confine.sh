#!/bin/sh
# Playwright starts a browser by a single path: this one, which starts confine.py in its place.
exec "$TERRELLA_PYTHON" -I -S "${0%/*}/confine.py" "$@"
