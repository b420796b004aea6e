# Reads a file, as far as locks show, for as long as the file `held` exists.
import fcntl
import os
import struct
import sys
import time

F_OFD_SETLK = 37
with open(sys.argv[1], "rb") as file:
    fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 1, 1, 0))
    open("held", "w").close()
    while os.path.exists("held"):
        time.sleep(0.02)
