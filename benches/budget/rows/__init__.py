"""The rows of the table: one function for each subject, which yields its rows."""
