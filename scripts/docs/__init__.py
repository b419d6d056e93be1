"""Writers of the documentation pages that are generated from code."""
