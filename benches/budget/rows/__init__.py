"""The rows of the table; a function a subject, each giving its rows."""
