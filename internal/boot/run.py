import sys


def told(error, hook):
    """Of an interpreter that is not held: it says itself what ended its program."""


def finish(status, watched):
    """Of an interpreter that is not held: it ends by itself."""


def run():
    """Run the program at sys.argv[1] as the interpreter would, in a __main__ that is nobody else's.

    But its streams are written out at each line's end, so that what it printed before it was ended is not lost.
    """
    def hook(kind, error, trace):
        while trace is not None and trace.tb_frame.f_code in ours:
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)
    ours = (run.__code__, sys._getframe(1).f_code)
    sys.excepthook = hook
    del sys.argv[0]
    path = sys.argv[0]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.orig_argv[0], "-I"] + sys.argv
    sys.path.insert(0, "/workspace")
    if "linecache" in sys.modules:
        sys.modules["linecache"].cache.pop("<string>", None)  # Python 3.13: this text is no source of what programs call so
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    with open(path, "rb") as file:
        code = file.read()
    outer = sys._getframe(1).f_globals
    module = sys.modules["__main__"] = type(sys)("__main__")
    main = module.__dict__
    for name in ("__loader__", "__annotations__", "__builtins__"):
        if name in outer:
            main[name] = outer[name]
    main["__file__"] = path
    main["__cached__"] = None
    del module, outer
    status = 0
    try:
        exec(compile(code, path, "exec", dont_inherit=True), main)
    except BaseException as error:
        status = told(error, hook)
        if status is None:
            raise
    del main
    finish(status, b"__del__" in code or b"weakref" in code)
