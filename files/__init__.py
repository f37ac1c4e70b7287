"""SQLite files of the package, and text files that are replaced in one step.

- `sqlite`: open and migrate an SQLite file, and explain its errors
- `replacing`: replace a text file so that no reader finds a part of it
"""
