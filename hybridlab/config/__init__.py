"""Configuration: pydantic schemas, YAML files with line numbers, `extends`, `--set a.b=c`, and run identity."""
