"""Checks promises of the provider that rdma-core's own tests do not cover; run inside a folder, on two QPs of one device.

Uses the shared code of those tests, which is beside it.
"""
import errno
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, 'tests')]
from pyverbs.pyverbs_error import PyverbsRDMAError  # noqa: E402
from pyverbs.wr import SGE, SendWR  # noqa: E402
from tests.base import RCResources  # noqa: E402
from tests.utils import get_recv_wr, post_recv, traffic  # noqa: E402

RDMA_WRITE, QP_REQ_ERR, REM_INV_REQ = 0, 2, 9


def players():
    client, server = (RCResources(dev_name='iron1', ib_port=1, gid_index=1) for _ in range(2))
    client.pre_run(server.psns, server.qps_num)
    server.pre_run(client.psns, client.qps_num)
    return client, server


def refused(verb):
    try:
        verb()
    except PyverbsRDMAError as error:
        return error.error_code == errno.EIO
    return False


def a_forked_child_touches_nothing():
    client, server = players()
    traffic(client, server, 10, 1, 1)
    child = os.fork()
    if child == 0:
        ok = refused(lambda: post_recv(client, get_recv_wr(client))) and refused(client.cq.poll)
        for player in (client, server):
            player.ctx.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0, 'the child was let through'
    traffic(client, server, 10, 1, 1)


def an_asynchronous_event_reaches_its_context():
    client, server = players()
    wr = SendWR(opcode=RDMA_WRITE, num_sge=1, sg=[SGE(client.mr.buf, 8, client.mr.lkey)])
    wr.set_wr_rdma(12345, server.mr.buf)
    client.qps[0].post_send(wr)
    found = 0
    while not found:
        found, wcs = client.cq.poll()
    assert wcs[0].status == REM_INV_REQ, wcs[0].status
    event = server.ctx.get_async_event()
    assert event.event_type == QP_REQ_ERR, event.event_type
    event.ack()
    server.qps[0].close()


for promise in (a_forked_child_touches_nothing, an_asynchronous_event_reaches_its_context):
    promise()
    print(promise.__name__, 'ok')
