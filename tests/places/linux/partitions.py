"""Sets the P_Key table of a port, like a subnet manager: partitions.py DEVICE LID P_KEY...

DEVICE (such as umad0) is the manager's own port, LID that of the port to configure.
"""

import fcntl
import os
import select
import struct
import sys

# linux: include/uapi/rdma/ib_user_mad.h
REGISTER_AGENT = 0xC01C1B01
ENABLE_PKEY = 0x1B03
HEADER = struct.Struct("=IIIII4s4s2s6B16s4sH6x")
# InfiniBand Architecture, 14.2.1.1: a LID-routed subnet management packet.
SUBN_LID_ROUTED, SET, SET_ANSWER, P_KEY_TABLE = 0x01, 0x02, 0x81, 0x0016
SMP = struct.Struct(">BBBBHHQHHIQ32s64s128x")


def main():
    device, lid, keys = sys.argv[1], int(sys.argv[2]), [int(key, 0) for key in sys.argv[3:]]
    file = os.open("/dev/infiniband/" + device, os.O_RDWR)
    fcntl.ioctl(file, ENABLE_PKEY)
    asked = bytearray(struct.pack("=I16sBBB3sB1x", 0, bytes(16), 0, SUBN_LID_ROUTED, 1, bytes(3), 0))
    fcntl.ioctl(file, REGISTER_AGENT, asked)
    agent = struct.unpack_from("=I", asked)[0]
    table = struct.pack(f">{len(keys)}H", *keys).ljust(64, b"\0")
    header = HEADER.pack(
        agent, 0, 1000, 3, 256, bytes(4), bytes(4), struct.pack(">H", lid), *bytes(6), bytes(16), bytes(4), 0
    )
    os.write(file, header + SMP.pack(1, SUBN_LID_ROUTED, 1, SET, 0, 0, lid, P_KEY_TABLE, 0, 0, 0, bytes(32), table))
    if not select.select([file], [], [], 10)[0]:
        sys.exit(f"LID {lid} does not answer")
    answer = os.read(file, HEADER.size + SMP.size)
    method, status = struct.unpack_from(">BH", answer, HEADER.size + 3)
    found = answer[HEADER.size + 64 :][: 2 * len(keys)]
    if (method, status, found) != (SET_ANSWER, 0, table[: 2 * len(keys)]):
        sys.exit(f"LID {lid}: expected its P_Keys, found method {method:#x}, status {status:#x}, {found.hex()}")


main()
