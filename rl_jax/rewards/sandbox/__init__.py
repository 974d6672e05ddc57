"""A sandbox for programs that a model wrote: run(files, stdin, limits) -> what came out. Linux; stdlib only.

    sandbox = start.make("landlock")                       # or "bubblewrap", or "none"; proved before it is returned
    result = sandbox.run({"main.py": "print(input())"}, stdin=b"hello")
    result.status, result.stdout                           # "ok", b"hello\\n"

protocol.py has the limits and the result, start.py the backends, prove.py what each is proved by (attempts.py.txt).
"""
