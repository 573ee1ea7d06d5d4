"""fio's rdma engine: each verb of its client against its server, over rdma_cm; the server verifies the data it receives."""

SIZE = 16 << 20
BLOCK = 64 << 10


def install():
    from bed import need

    return need("fio")


def check(bed, fio):
    before = bed.sent()
    checked = ["--verify=crc32c", "--verify_fatal=1"]
    # The server cannot verify RDMA writes and reads of its memory, because it gets no completions for them.
    jobs = [("write", [], []), ("read", [], []), ("send", checked, [*checked, "--do_verify=0"])]
    for port, (verb, serves, asks) in enumerate(jobs, 2301):
        common = [fio, "--ioengine=rdma", f"--port={port}", f"--bs={BLOCK}", f"--size={SIZE}", "--output-format=terse"]
        # All receives are posted before the first send, because fio sets no RNR retries.
        server = bed.start(*common, "--name=server", "--verb=recv", "--rw=read", f"--iodepth={SIZE // BLOCK}", *serves)
        server.until("waiting for connection", 20)
        asked = ["--hostname=127.0.0.2", "--bindname=127.0.0.3", f"--verb={verb}", "--rw=write", "--iodepth=16"]
        bed.run(*common, "--name=client", *asked, *asks, seconds=30)
        server.wait(30)
    sent = bed.must_have_sent(before, len(jobs) * SIZE)
    version = bed.run(fio, "--version").strip()
    return f"{version}: write, read and send (verified by crc32c) of {SIZE} bytes each, devices sent {sent}"
