"""The bodies of the API's answers, as pydantic models: each is built from the Report by one function."""
