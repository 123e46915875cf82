"""The servers of a run: which may be asked, how much, by which worker; and one that the job starts itself."""
