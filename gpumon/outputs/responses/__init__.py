"""The responses of the API as pydantic models. Class methods and functions build them from the Report."""
