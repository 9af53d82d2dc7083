"""What programs call over HTTP, and the page that shows the trees."""

from __future__ import annotations
