import atexit
import builtins
import gc
import io
import itertools
import os
import sys
import time
import weakref


held = {}  # what was loaded before there was a program, by name
built = {}  # what builtins has then
often = ("__import__", "open", "print", "input", "exit", "quit", "len", "str", "repr")  # what programs put in the place of
leave = os._exit


def wait(fd, modules):
    """Be an interpreter that has modules loaded and waits on the descriptor fd for its program."""
    os.set_inheritable(fd, False)
    prepare(modules)
    hold(fd)


def prepare(modules):
    """Import modules, those that can be, and do once what programs do with them, so that it is not done again.

    Nothing is printed by it and no file of it is left. What exists afterwards is no longer looked at for garbage.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    streams = [(n, os.dup(n)) for n in (1, 2)]
    null = os.open(os.devnull, os.O_WRONLY)
    before = listing()
    for n, _ in streams:
        os.dup2(null, n)
    try:
        for name in modules:
            try:
                __import__(name)
            except Exception:
                continue
            try:
                exercise(name)
            except Exception:
                pass  # it will fail for the program, where it is seen
        try:
            libc()
        except (ImportError, OSError):
            pass  # then no program can leave text in the C library's buffers either
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        for n, copy in streams:
            os.dup2(copy, n)
            os.close(copy)
        os.close(null)
    tidy(before)
    settle()


def settle():
    """Note what there is before the program. It is not looked at again until it has to be.

    To look at an object is to count a use of it, and so to write to its page, which a copy would first have to copy.
    """
    forget_home()
    for _ in range(500):
        if len(os.listdir("/proc/self/task")) == 1:
            break
        time.sleep(.01)  # a thread that a module started while it was loaded is told to end, and takes a while to
    if "threading" in sys.modules:
        sys.modules["threading"]._counter = itertools.count(1).__next__  # threads of modules counted too
    held.clear()
    held.update(sys.modules)
    built.clear()
    built.update(vars(builtins))
    gc.collect()
    gc.freeze()


def forget_home():
    """Have matplotlib look anew for a place of its own: the one that it found is not the program's."""
    matplotlib, shutil = sys.modules.get("matplotlib"), sys.modules.get("shutil")
    for name in ("get_configdir", "get_cachedir"):
        find = getattr(matplotlib, name, None)
        if hasattr(find, "cache_clear"):
            find.cache_clear()
        elif getattr(find, "__closure__", None):
            cells = dict(zip(find.__code__.co_freevars, find.__closure__))
            if "called" in cells:
                cells["called"].cell_contents = False
    if shutil:
        atexit.unregister(shutil.rmtree)  # of the place that it made where there was none, also if it could not be loaded


def libc():
    """Let the end write out the buffers of the C library too, but not have each library taken apart, which nobody sees."""
    global leave
    import ctypes
    write_out = ctypes.CDLL(None).fflush

    def leave(status):
        write_out(None)
        os._exit(status)


def listing():
    return {(dir, name) for dir in (os.environ.get("HOME"), os.environ.get("TMPDIR")) if dir and os.path.isdir(dir)
            for name in os.listdir(dir)}


def tidy(before):
    import shutil
    for dir, name in listing() - before:
        path = os.path.join(dir, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def exercise(name):
    """Do with a module what programs do, for what it puts off until its first use."""
    if name == "json":
        sys.modules[name].loads(sys.modules[name].dumps({"a": [1, 2.5, None, "x"]}, indent=1))
    elif name == "csv":
        csv = sys.modules[name]
        csv.writer(io.StringIO()).writerow(["a", 1])
        list(csv.DictReader(io.StringIO("a,b\n1,2\n")))
    elif name == "re":
        sys.modules[name].findall(r"(\w+)\s*=\s*(\d+)", "a = 1")
    elif name == "datetime":
        sys.modules[name].datetime.strptime("2024-02-29 10:11:12", "%Y-%m-%d %H:%M:%S").strftime("%d %b %Y")
    elif name == "sqlite3":
        exercise_sqlite(sys.modules[name])
    elif name == "numpy":
        numpy = sys.modules[name]
        a = numpy.arange(12.0).reshape(3, 4)
        str(a @ a.T), a.mean(axis=0), a.std(), numpy.sort(a), numpy.linalg.solve(numpy.eye(3), numpy.ones(3))
    elif name == "pandas":
        exercise_pandas(sys.modules[name])
    elif name in ("matplotlib", "matplotlib.pyplot"):
        from matplotlib import pyplot
        figure, axes = pyplot.subplots()
        axes.plot([1, 2], [3, 4], label="a")
        axes.bar([1, 2], [3, 4])
        axes.set_title("a")
        axes.legend()
        figure.savefig(io.BytesIO(), format="png")
        pyplot.close("all")
        sys.modules["matplotlib.font_manager"]._get_font.cache_clear()  # it has their files open
    elif name == "openpyxl":
        book = sys.modules[name].Workbook()
        book.active.append(["a", 1])
        file = io.BytesIO()
        book.save(file)
        sys.modules[name].load_workbook(io.BytesIO(file.getvalue()))


def exercise_sqlite(sqlite3):
    import ctypes
    # SQLite draws random numbers by itself, and would from where it is in each copy. Where it cannot be told to begin anew it
    # must not begin.
    begin = ctypes.CDLL(getattr(sys.modules["_sqlite3"], "__file__", None)).sqlite3_randomness
    with sqlite3.connect(":memory:") as db:
        db.execute("create table t (a, b)")
        db.executemany("insert into t values (?, ?)", [(1, "x"), (2, "y")])
        db.execute("select a, count(*) from t group by a order by b").fetchall()
    db.close()
    begin(0, None)


def exercise_pandas(pandas):
    text = "k,v,d\na,1,2024-01-01\nb,2,2024-01-02\na,3,2024-01-03\n"
    frame = pandas.read_csv(io.StringIO(text), parse_dates=["d"])
    str(frame), repr(frame.dtypes), str(frame.describe())
    str(frame.groupby("k")["v"].agg(["sum", "mean"]))
    str(frame.groupby("k").agg({"v": "sum"}).reset_index().sort_values("v", ascending=False))
    str(frame.merge(frame, on="k")), str(frame["k"].value_counts()), frame["k"].str.upper().tolist()
    str(frame.pivot_table(index="k", values="v", aggfunc="sum")), frame[frame["v"] > 1].to_csv(index=False)
    frame["d"].dt.month.tolist(), frame["v"].rolling(2).mean(), frame.to_dict("records"), frame.isna().sum()
    frame.info(buf=io.StringIO())


def hold(fd):
    """Say on fd that all is ready, read from it what to run and become the interpreter that was started for that.

    It closes fd. Where that ends before there is a word there will be no program, and this is the end.
    """
    os.write(fd, b"R")
    parts = []
    while True:
        part = os.read(fd, 1 << 16)
        if not part:
            break
        parts.append(part)
    os.close(fd)
    words = b"".join(parts).split(b"\0")
    if words == [b""]:
        os._exit(0)
    try:
        if words.pop() != b"":
            raise ValueError("the last string has no end")
        words.reverse()
        stdin = {b"0": False, b"1": True}[words.pop()]
        args = [words.pop() for _ in range(number(words.pop()))]
        env = [words.pop().split(b"=", 1) for _ in range(number(words.pop()))]
        if words:
            raise ValueError("more than was announced")
        env = {name: value for name, value in env}
    except (ValueError, KeyError, IndexError) as error:
        os.write(2, b"glovebox: what to run was not understood: " + repr(error).encode("utf-8", "replace") + b"\n")
        os._exit(1)
    become(stdin, args, env)


def number(word):
    if not word.isdigit():
        raise ValueError("a wrong number")
    return int(word)


def become(stdin, args, env):
    sys.argv[2:] = [os.fsdecode(a) for a in args]
    os.environb.clear()
    os.environb.update(env)
    if "time" in sys.modules:
        sys.modules["time"].tzset()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # goes by TMPDIR
    if "threading" in sys.modules:
        sys.modules["threading"].main_thread()._native_id = sys.modules["threading"].get_native_id()  # of a copy
    if not stdin:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        renew_stdin()


def renew_stdin():
    """Make sys.stdin of what is descriptor 0 now: it remembers of its file, such as whether that can be rewound."""
    old = sys.stdin
    raw = io.open(0, "rb", -1, closefd=False)
    raw.raw.name = "<stdin>"
    new = io.TextIOWrapper(raw, old.encoding, old.errors, "\n", raw.raw.isatty())
    new.mode = "r"
    sys.stdin = sys.__stdin__ = new


def reseed():
    """Forget what random numbers and names were to come: copies of an interpreter would all have the same.

    That copies have the same process id, each in a namespace of its own, is why no library sees by itself that it is one.
    """
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    if "ssl" in modules:
        modules["ssl"].RAND_add(os.urandom(32), 32.0)
    if "uuid" in modules:
        modules["uuid"]._node = modules["uuid"]._last_timestamp = None
    if "multiprocessing.process" in modules:
        process = modules["multiprocessing.process"].current_process()
        process._config["authkey"] = modules["multiprocessing.process"].AuthenticationString(os.urandom(32))
    if "multiprocessing.synchronize" in modules:
        modules["multiprocessing.synchronize"].SemLock._rand = modules["tempfile"]._RandomNameSequence()


def told(error, hook):
    """Say of an error that ended the program what the interpreter would, and return the status.

    None means that the interpreter has to do it itself.
    """
    if not plain():
        return None
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
        if isinstance(code, int) and -1 << 63 <= code < 1 << 63:
            forget(error)
            return code & 0xff
    if isinstance(error, (SystemExit, KeyboardInterrupt)) or getattr(sys, "excepthook", None) is not hook:
        gc.unfreeze()
        return None
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.audit("sys.excepthook", hook, type(error), error, error.__traceback__)
    try:
        hook(type(error), error, error.__traceback__)
    except BaseException:
        gc.unfreeze()
        return None
    return 1


def plain():
    """Whether finish can take the place of the interpreter's own end. If not, that is made as complete as ever."""
    now = vars(builtins)
    if (len(sys._current_frames()) == 1 and sys.gettrace() is None and sys.getprofile() is None and gc.isenabled()
            and len(now) == len(built) and all(now.get(name) is built[name] for name in often)):
        return True
    gc.unfreeze()
    return False


def finish(status, watched):
    """End as the interpreter would, but do not take apart what was loaded before the program: nobody sees that.

    Where the program may watch what is taken apart, the names of what was loaded before go too.

    What can be seen is done in the interpreter's order: threading's end, atexit, streams written out, the program's module
    and those that it loaded taken apart. Where something does not go as it should, this returns or raises SystemExit, and
    the interpreter does what is left.
    """
    if not plain():
        return natural(status)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = unraisable
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        try:
            atexit._run_exitfuncs()
        except BaseException:
            pass  # said by atexit
        flush()
    except BaseException:
        return natural(status)
    gc.collect()
    marks = apart(watched)
    if any(mark() is not None for mark in marks):
        sys.modules.update(held)
        return natural(status)
    try:
        flush()
    except BaseException:
        return natural(status)
    leave(status)


def unraisable(what):
    """Say what the interpreter says of an error with nobody to raise it to, as if finish were not running."""
    trace = what.exc_traceback
    while trace is not None and trace.tb_frame.f_code in (finish.__code__, clear.__code__):
        trace = trace.tb_next
    error = what.exc_value and what.exc_value.with_traceback(trace)
    sys.__unraisablehook__(type(what)((what.exc_type, error, trace, what.err_msg, what.object)))


def natural(status):
    if sys.unraisablehook is unraisable:
        sys.unraisablehook = sys.__unraisablehook__
    gc.unfreeze()
    if status:
        sys.exit(status)


def flush():
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


class Mark:
    """Put into the names of a module it tells whether they are gone."""


def apart(watched):
    """Take the program's modules apart as the interpreter does, and return what is alive while names of the program's are."""
    system = tuple(dir for dir in sys.path if dir != "/workspace") + (sys.prefix, sys.base_prefix)
    marks, own = [], []
    # The newest come first, and what was held is not touched.
    late = itertools.islice(reversed(sys.modules.items()), max(0, len(sys.modules) - len(held)))
    for name, module in itertools.chain([("__main__", sys.modules.get("__main__"))], late):
        own.append(name)
        try:
            names = object.__getattribute__(module, "__dict__")  # which wakes no module that loads itself when it is needed
        except AttributeError:
            continue
        if type(names) is not dict:
            continue
        if name == "__main__" or not str(names.get("__file__")).startswith(system):
            names["__mark__"] = mark = Mark()
            marks.append(weakref.ref(mark))
        watched = watched or name != "__main__"
    module = names = mark = None
    if watched:
        own = list(sys.modules)
    gone = ["path", "argv", "ps1", "ps2", "last_exc", "last_type", "last_value", "last_traceback", "path_hooks",
            "path_importer_cache", "meta_path", "__interactivehook__"]
    then = {"stdin": sys.__stdin__, "stdout": sys.__stdout__, "stderr": sys.__stderr__}
    clear(vars(builtins), vars(sys), dict.fromkeys(gone), then, sys.modules, own, watched, gc.collect)
    return marks


def nowhere(text):
    """The function that text is. What is warned of while it runs is said to be where it is when no code runs any more."""
    name, line = ("<sys>", 0) if sys.version_info >= (3, 13) else ("sys", 1)
    function = eval(compile(text, name, "eval"), {"__name__": "sys"})
    function.__code__ = function.__code__.replace(co_firstlineno=line)
    return function


clear = nowhere("lambda builtins, sys, gone, then, modules, own, all, collect: (builtins.update(_=None), sys.update(gone),"
                " sys.update(then), [modules.update({name: None}) for name in own],"
                " all and modules.clear(), collect())")
forget = nowhere("lambda error: error.with_traceback(None)")
