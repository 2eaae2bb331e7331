"""The `posttrain` command.

`app` holds the table of commands and turns errors into exit codes (`ledger.cli.app:main` is the console script); one module
a command or group reads the options, calls the library and prints through `output`, for people or as JSON. A module is
imported when its command is used, so this package itself imports nothing. Other packages add commands through `plugins`.
May import the whole of `ledger`, nothing above it.
"""
