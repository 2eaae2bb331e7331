"""Serving: from a promotion to answers over HTTP, and back again.

The flow, top to bottom:

    deploy       stage name → its live promotion → model staged by digest → engine started → proved → traffic shifted
    engine       the child process: one model in memory behind three OpenAI routes and a read-back of its weights
    gateway      one long-running process a home: a stage name in, the engine that the ledger names out
    audit        what runs, compared with what the ledger says
    client       a completion over HTTP, for the readiness probe and for people

Below them: `routes` folds events into "which deployment has the stage's traffic" (pure), `weights` digests weights on
disk and in memory alike, `places` says where a process keeps its files and whether it lives, `requests` bounds what a
client may ask, `web/` holds the applications of the two servers.

Nothing serves that the ledger does not name: the gateway routes a stage only to the deployment of its last
`TrafficShifted`, when that deployment has a `DeploymentReady` and no `DeploymentStopped`, and a deployment is ready only
after a real completion by the right weights. May import `ledger`; torch, transformers, starlette, uvicorn and httpx only
in the processes that need them.
"""
