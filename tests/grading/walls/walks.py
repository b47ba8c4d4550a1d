"""Ways to come by bytes that nobody handed over, as source for guests: each defines `blobs()`, which yields what it could read.

`WALKER` is shared: it finds what is mapped with the help of /proc, or without, by asking the kernel where a new mapping would collide and which
pages a system call can read.
"""

from __future__ import annotations

WALKER = """
    import ctypes, gc, mmap, os, re, sys
    libc = ctypes.CDLL(None, use_errno=True)
    word, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype, libc.mmap.argtypes = word, [word, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [word, size]
    libc.write.argtypes = [number, word, size]
    libc.mincore.argtypes = [word, size, word]
    libc.madvise.argtypes = [word, size, number]
    libc.sbrk.restype = libc.malloc.restype = word
    libc.malloc.argtypes = [size]
    PAGE, TOP = 4096, 0x7FFFFFFFF000

    def listed(everything=False):
        found = []
        with open("/proc/self/maps") as lines:
            for line in lines.read().splitlines():
                fields = line.split(None, 5)
                name = fields[5] if len(fields) > 5 else ""
                if fields[1][0] != "r" or name in ("[vvar]", "[vsyscall]", "[vvar_vclock]"):
                    continue
                if name.startswith("/") and "w" not in fields[1] and not everything:
                    continue
                found.append(tuple(int(part, 16) for part in fields[0].split("-")))
        return found

    def taken(low, high):
        at = libc.mmap(low, high - low, 0, 0x104022, -1, 0)  # a private reservation of exactly this place
        if at == low:
            libc.munmap(at, high - low)
            return False
        if at not in (None, 2**64 - 1):
            libc.munmap(at, high - low)
        return True

    def swept(step=0):
        # Ranges of 64 KB in which something is mapped, over the whole address space.
        if not step:
            step = 1 << 40
            while step > 1 << 26 and taken(1 << 44, (1 << 44) + step):
                step //= 2
        found, todo = [], [(low, min(low + step, TOP)) for low in range(0, TOP, step)]
        todo = [(max(low, 1 << 16), high) for low, high in todo]
        while todo:
            low, high = todo.pop()
            if taken(low, high):
                if high - low <= 1 << 16:
                    found.append((low, high))
                else:
                    middle = (low + (high - low) // 2) & ~0xFFFF
                    todo += [(low, middle), (middle, high)] if low < middle < high else []
        return sorted(found)

    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    held = 0
    def can_write(page):
        global held
        if libc.write(writer, page, 1) != 1:
            return False
        held += 1
        if held >= 4000:
            os.read(reader, 1 << 16)
            held = 0
        return True

    def pages(ranges, readable):
        # Join readable pages to regions of at most 4 MB.
        start = last = None
        for low, high in ranges:
            for page in range(low, high, PAGE):
                if not readable(page):
                    continue
                if last == page and page - start < 1 << 22:
                    last = page + PAGE
                    continue
                if start is not None:
                    yield start, last
                start, last = page, page + PAGE
        if start is not None:
            yield start, last

    def texts(regions):
        # By way of a pipe: a page that is gone by now is an error then, and no fault.
        source, sink = os.pipe()
        for low, high in regions:
            pieces = []
            for at in range(low, high, 1 << 16):
                count = libc.write(sink, at, min(1 << 16, high - at))
                pieces.append(os.read(source, count) if count > 0 else b"")
            yield b"".join(pieces)
    """

_PROBED = "def blobs():\n    return texts(list(pages(swept(), {0})))"

WALKS: dict[str, tuple[str, str]] = {
    "maps_string_at": (
        "reads all that /proc/self/maps lists",
        "def blobs():\n    return (ctypes.string_at(low, high - low) for low, high in listed())",
    ),
    "maps_mem_file": (
        "reads /proc/self/mem at what maps lists",
        """
        def blobs():
            with open("/proc/self/mem", "rb", 0) as memory:
                for low, high in listed():
                    try:
                        yield os.pread(memory.fileno(), high - low, low)
                    except OSError:
                        pass
        """,
    ),
    "maps_write_to_pipe": ("has the kernel copy memory into a pipe", "def blobs():\n    return texts(listed())"),
    "sweep_write": ("sweeps the address space, asks write which pages fault", _PROBED.format("can_write")),
    "sweep_mincore": (
        "sweeps the address space, asks mincore and write which pages are there",
        "vector = ctypes.create_string_buffer(1)\n"
        + _PROBED.format("lambda page: libc.mincore(page, PAGE, ctypes.addressof(vector)) == 0 and can_write(page)"),
    ),
    "sweep_madvise": (
        "sweeps the address space, asks madvise and write which pages are there",
        _PROBED.format("lambda page: libc.madvise(page, PAGE, 0) == 0 and can_write(page)"),
    ),
    "sweep_sigmask": (
        "sweeps the address space, asks sigprocmask which pages fault",
        "libc.syscall.restype, libc.syscall.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_long, word, word, size]\n"
        "def unmasked(page):\n"
        "    ctypes.set_errno(0)\n"
        "    return libc.syscall(14, 99, page, None, 8) == -1 and ctypes.get_errno() == 22\n"
        + _PROBED.format("unmasked"),
    ),
    "near_objects": (
        "reads the arenas around the addresses of live objects",
        """
        def blobs():
            bases = sorted({id(item) >> 20 for item in gc.get_objects()} | {id(bytes(9)) >> 20, id(object()) >> 20})
            near = sorted({base + by for base in bases for by in range(-4, 5)})
            return texts(list(pages([(base << 20, base + 1 << 20) for base in near if base > 0], can_write)))
        """,
    ),
    "below_the_break": (
        "walks the heap down from its break",
        """
        def blobs():
            end = libc.sbrk(0) & ~0xFFF
            return texts(list(pages([(end - (1 << 28), end)], can_write)))
        """,
    ),
    "above_libraries": (
        "reads what lies between the libraries",
        """
        def blobs():
            middle = ctypes.cast(libc.malloc, word).value & ~0xFFFFF
            ranges = [(low, low + (1 << 16)) for low in range(middle - (1 << 28), middle + (1 << 28), 1 << 16) if taken(low, low + (1 << 16))]
            return texts(list(pages(ranges, can_write)))
        """,
    ),
    "stack": (
        "reads the stack above its own frame",
        """
        def blobs():
            environment = ctypes.c_void_p.in_dll(libc, "environ").value & ~0xFFF
            return texts(list(pages([(environment - (8 << 20), environment + (1 << 20))], can_write)))
        """,
    ),
    "fresh_bytes": (
        "takes bytes objects that nobody has written to",
        """
        def blobs():
            make = ctypes.pythonapi.PyBytes_FromStringAndSize
            make.restype, make.argtypes = ctypes.py_object, [word, ctypes.c_ssize_t]
            kept = []
            for length in [*range(100, 4000, 50), *(1 << n for n in range(12, 24))]:
                for _ in range(100 if length < 5000 else 4):
                    kept.append(make(None, length))
                    yield kept[-1]
        """,
    ),
    "fresh_malloc": (
        "takes blocks from malloc that nobody has cleared",
        """
        def blobs():
            for length in [*range(24, 2000, 16), *range(2048, 1 << 17, 2048)]:
                for _ in range(50 if length < 2000 else 4):
                    at = libc.malloc(length)
                    if at:
                        yield ctypes.string_at(at, length)
        """,
    ),
    "fresh_objects": (
        "takes blocks from Python's small-object allocator that nobody has cleared, several at a time",
        """
        def blobs():
            take = ctypes.pythonapi.PyObject_Malloc
            take.restype, take.argtypes = word, [size]
            for length in range(16, 513, 16):
                blocks = sorted(take(length) for _ in range(2000))
                yield b"".join(ctypes.string_at(at, length) for at in blocks)
        """,
    ),
    "free_lists": (
        "reads past dicts, lists and frames that come from free lists",
        """
        def blobs():
            made = [{i: i} for i in range(2000)] + [[i] for i in range(2000)] + [(i, i) for i in range(2000)] + [float(i) for i in range(2000)]
            for page in sorted({id(item) & ~0x3FFF for item in made}):
                yield from texts(list(pages([(page, page + 0x4000)], can_write)))
        """,
    ),
    "collector": (
        "asks the garbage collector for every string within reach",
        """
        def blobs():
            todo, seen = gc.get_objects(), set()
            while todo:
                item = todo.pop()
                if id(item) in seen:
                    continue
                seen.add(id(item))
                if type(item) in (bytes, bytearray):
                    yield bytes(item)
                elif type(item) is str:
                    yield item.encode("utf-8", "replace")
                elif len(seen) < 2_000_000:
                    todo += gc.get_referents(item)
        """,
    ),
    "frames_and_modules": (
        "looks through frames, modules, exceptions and linecache",
        """
        def strings(value, depth=4):
            if isinstance(value, str):
                yield value.encode("utf-8", "replace")
            elif isinstance(value, (bytes, bytearray)):
                yield bytes(value)
            elif depth and isinstance(value, dict):
                for item in list(value.values()):
                    yield from strings(item, depth - 1)
            elif depth and isinstance(value, (list, tuple, set, frozenset)):
                for item in list(value):
                    yield from strings(item, depth - 1)
            elif depth and hasattr(value, "__dict__"):
                yield from strings(dict(vars(value)), depth - 1)
            for name in getattr(type(value), "__slots__", ()) if depth else ():
                yield from strings(getattr(value, name, None), depth - 1)
        def blobs():
            import linecache, traceback
            yield from strings(linecache.cache)
            for frame in sys._current_frames().values():
                while frame:
                    yield from strings(dict(frame.f_locals))
                    yield from strings(dict(frame.f_globals), 2)
                    frame = frame.f_back
            for module in list(sys.modules.values()):
                yield from strings(dict(vars(module)), 2)
            for name in ("last_value", "last_traceback", "exc_info"):
                yield from strings(getattr(sys, name, None))
        """,
    ),
    "descriptors": (
        "reads every descriptor from the start, by number",
        """
        def blobs():
            for fd in range(1024):
                if fd in (reader, writer):
                    continue
                for read in (lambda: os.pread(fd, 1 << 24, 0), lambda: (os.set_blocking(fd, False), os.read(fd, 1 << 24))[1]):
                    try:
                        yield read()
                    except OSError:
                        pass
        """,
    ),
    "descriptor_files": (
        "opens what /proc/*/fd names anew, and maps it",
        """
        def blobs():
            for pid in os.listdir("/proc"):
                if pid != "self" and not pid.isdigit():
                    continue
                try:
                    names = os.listdir(f"/proc/{pid}/fd")
                except OSError:
                    continue
                for name in names:
                    try:
                        fd = os.open(f"/proc/{pid}/fd/{name}", os.O_RDONLY | os.O_NONBLOCK)
                        yield os.pread(fd, 1 << 24, 0)
                        yield mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:]
                    except (OSError, ValueError):
                        pass
        """,
    ),
    "files": (
        "reads every small file that it can find",
        """
        def blobs():
            for place in (".", "/tmp", "/dev/shm", "/var/tmp", "/run", "/"):
                for folder, below, names in os.walk(place):
                    if folder.startswith(("/proc", "/sys", "/dev/pts")) or folder != "/" and os.statvfs(folder).f_flag & 1:
                        below[:] = []  # nothing is left behind where nothing can be written
                        continue
                    for name in names:
                        path = os.path.join(folder, name)
                        try:
                            if os.path.isfile(path) and os.path.getsize(path) < 1 << 24:
                                yield path.encode("utf-8", "replace") + open(path, "rb").read()
                        except OSError:
                            pass
        """,
    ),
    "environments": (
        "reads environments, arguments and command lines",
        """
        def blobs():
            yield repr((dict(os.environ), sys.argv, sys.orig_argv, sys.path)).encode()
            for pid in ("self", "1", str(os.getppid()), *filter(str.isdigit, os.listdir("/proc"))):
                for name in ("environ", "cmdline", "comm", "status", "mountinfo", "cgroup"):
                    try:
                        yield open(f"/proc/{pid}/{name}", "rb").read()
                    except OSError:
                        pass
        """,
    ),
    "memory_of_others": (
        "reads the memory of its parent, of PID 1 and of all that it can see",
        """
        def blobs():
            for pid in {"1", str(os.getppid()), *(p for p in os.listdir("/proc") if p.isdigit())} - {str(os.getpid())}:
                try:
                    regions = [line.split()[0].split("-") for line in open(f"/proc/{pid}/maps") if " rw" in line]
                    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
                except OSError:
                    continue
                for low, high in regions:
                    try:
                        yield os.pread(fd, int(high, 16) - int(low, 16), int(low, 16))
                    except OSError:
                        pass
        """,
    ),
    "vm_readv": (
        "reads its parent's memory at the addresses of its own",
        """
        class Iovec(ctypes.Structure):
            _fields_ = [("base", word), ("length", size)]
        def blobs():
            for pid in (os.getppid(), 1):
                for low, high in list(pages(swept(), can_write)):
                    buffer = ctypes.create_string_buffer(high - low)
                    here, there = Iovec(ctypes.addressof(buffer), high - low), Iovec(low, high - low)
                    if libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) <= 0:
                        break
                    yield buffer.raw
        """,
    ),
    "child_of_a_thread": (
        "walks the memory from a child of a thread, where little has been written over",
        """
        def blobs():
            import threading
            source, sink = os.pipe()
            def work():
                if os.fork() == 0:
                    try:
                        for low, high in list(pages(swept(), can_write)):
                            text = ctypes.string_at(low, high - low)
                            for found in re.finditer(rb"[ -~\\n]{60,}", text):
                                os.write(sink, found.group() + b"\\0")
                    finally:
                        os._exit(0)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            os.close(sink)
            with os.fdopen(source, "rb") as pieces:
                yield from pieces.read().split(b"\\0")
        """,
    ),
}
"""Name -> what it tries, and source below WALKER."""
