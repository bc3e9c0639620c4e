# RS-20, BL-059: many threads and many short processes use the CPU, so that no single process uses much
import os, sys, time

if not os.environ.get("HARNESS_OK"):
    sys.exit(99)
if sys.argv[1] == "threads":
    import threading

    for _ in range(63):
        threading.Thread(target=lambda: sum(i * i for i in range(10**12)), daemon=True).start()
    time.sleep(60)
elif sys.argv[1] == "together":
    for _ in range(63):
        if os.fork() == 0:
            while True:
                pass
    time.sleep(60)
else:  # in turn, each for a moment
    while True:
        pid = os.fork()
        if pid == 0:
            end = time.process_time() + 0.01
            while time.process_time() < end:
                pass
            os._exit(0)
        os.waitpid(pid, 0)
