"""A model over HTTP, and its page. Needs the extra `serve`; nothing here is imported before a server is made.

limits.py     how much a client may send
guard.py      host names, tokens, limits: checked before anything else reads a request
images.py     a request's body -> checked pixels
batching.py   concurrent requests -> one forward pass
watching.py   the version that is served; a new one is picked up whole
history.py    where the prototypes were after each task, on one 2-D map
schemas.py    the answers for OpenAPI, with examples (`model.answers` and `model.facts` make them)
app.py        the routes
running.py    sockets and signals
page/         plain HTML, CSS and JavaScript; the style sheet is the report's
"""
