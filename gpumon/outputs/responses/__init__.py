"""The responses of the API as pydantic models. One function builds each of them from the Report."""
