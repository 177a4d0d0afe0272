"""A model over HTTP, and its page. Needs the extra `serve`; nothing here is imported before a server is made.

limits.py     how much a client may send
access.py     names of this machine, tokens, origins
connections.py  how many connections, how long each may take
guard.py      access and limits: checked before anything else reads a request
uploads.py    a request's body -> files
decoding.py   files -> pixels, in processes (decoder.py) that can be killed
batching.py   concurrent requests -> one forward pass
turns.py      a queue that is fair between clients
watching.py   the version that is served; a new one is picked up whole
teaching.py   photos that clients send become new versions; `--teach`
history.py    where the prototypes were after each task, on one 2-D map
schemas.py    the answers for OpenAPI, with examples (`model.answers` and `model.facts` make them)
app.py        the routes
metrics.py    what Prometheus reads; extra `metrics`
logs.py       log lines limited in rate
running.py    sockets and signals
page/         plain HTML, CSS and JavaScript; the style sheet is the report's
"""
