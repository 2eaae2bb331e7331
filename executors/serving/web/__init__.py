"""What needs the `serve` extra while it is imported: the applications of the two servers.

`engine` and `gateway` hold the applications that the modules of the same name run; `replies` is what both answer with.
Nothing but those two processes imports this package.
"""
