/* Memory that disappears while it is registered: gone DEVICE PEER
 *
 * A child opens PEER. Prints a line for each request: "PLACE WAY OPERATION BYTES: STATUS". PLACE is the memory that disappears: the
 * responder's in this program ("here") or in the child ("there"), or the requester's ("ours"). No signal may end a process. */
#define _GNU_SOURCE
#include "device.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 4
#define PAGE 4096
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

enum way { STAYS, UNMAPPED, PROTECTED, CUT_SHORT, READ_ONLY };
static const char *const names[] = { "stays", "unmapped", "protected", "cut-short", "read-only" };

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *base;
	int file;
};

/* Address and key that are sent to the other end. */
struct place {
	union ibv_gid gid;
	unsigned qpn, rkey;
	unsigned long at;
};

static struct end open_end(const char *name)
{
	struct end end = { .context = opened(name), .file = -1 };
	HOLD((end.pd = ibv_alloc_pd(end.context)) && (end.cq = ibv_create_cq(end.context, 16, NULL, NULL, 0)));
	return end;
}

/* Creates a queue pair, and registers the memory that will disappear. It begins and ends within pages, so it is not lent. */
static struct place begin(struct end *end, enum way way)
{
	struct ibv_qp_init_attr init = { .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	int shared = way == CUT_SHORT;
	if (shared)
		HOLD((end->file = memfd_create("gone", 0)) >= 0 && !ftruncate(end->file, PAGES * PAGE));
	end->base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
		shared ? end->file : -1, 0);
	HOLD(end->base != MAP_FAILED);
	memset(end->base, 'x', PAGES * PAGE);
	HOLD((end->mr = ibv_reg_mr(end->pd, end->base + 64, (PAGES - 1) * PAGE, ACCESS)));
	HOLD((end->qp = ibv_create_qp(end->pd, &init)));
	struct place place = { .qpn = end->qp->qp_num, .rkey = end->mr->rkey, .at = (unsigned long)end->base + 64 };
	HOLD(!ibv_query_gid(end->context, 1, 1, &place.gid));
	return place;
}

static void go(struct end *end, enum way way)
{
	size_t all = PAGES * PAGE;
	HOLD(way == UNMAPPED ? !munmap(end->base, all) : way == PROTECTED ? !mprotect(end->base, all, PROT_NONE) :
		way == READ_ONLY ? !mprotect(end->base, all, PROT_READ) : way == CUT_SHORT ? !ftruncate(end->file, 0) : 1);
}

static void finish(struct end *end, enum way way)
{
	HOLD(!ibv_destroy_qp(end->qp) && !ibv_dereg_mr(end->mr));
	if (way != UNMAPPED)
		HOLD(!munmap(end->base, PAGES * PAGE));
	if (way == CUT_SHORT)
		close(end->file);
}

/* Posts one request of `bytes` bytes and returns the status of its completion. */
static int request(struct end *end, enum ibv_wr_opcode opcode, const struct place *peer, unsigned bytes)
{
	struct ibv_sge sge = { (unsigned long)end->base + 64, bytes, end->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { peer->at, peer->rkey } }, *bad;
	struct ibv_wc wc;
	HOLD(!ibv_post_send(end->qp, &wr, &bad));
	for (int i = 0, n; i < 20000; i++, usleep(500)) {
		HOLD((n = ibv_poll_cq(end->cq, 1, &wc)) >= 0);
		if (n)
			return wc.status;
	}
	return -1;
}

/* The child: for each round it reads the way, sends its place, reads ours, and removes its memory when it is told to. */
static int serve(const char *name, int from, int to)
{
	struct end end = open_end(name);
	enum way way;
	while (read(from, &way, sizeof way) == sizeof way) {
		struct place ours = begin(&end, way), theirs;
		char word;
		HOLD(write(to, &ours, sizeof ours) == sizeof ours && read(from, &theirs, sizeof theirs) == sizeof theirs);
		connect_to(end.qp, theirs.gid, theirs.qpn, ACCESS, IBV_MTU_1024);
		HOLD(write(to, "c", 1) == 1 && read(from, &word, 1) == 1);
		go(&end, way);
		HOLD(write(to, "g", 1) == 1 && read(from, &word, 1) == 1);
		finish(&end, way);
	}
	return 0;
}

int main(int argc, char **argv)
{
	HOLD(argc == 3);
	alarm(120);
	setlinebuf(stdout);
	int down[2], up[2];
	HOLD(!pipe(down) && !pipe(up));
	pid_t child = fork();
	HOLD(child >= 0);
	if (!child) {
		close(down[1]);
		alarm(120);
		exit(serve(argv[2], down[0], up[1]));
	}
	close(down[0]);
	struct end ours = open_end(argv[1]), second = ours;
	static const char *const places[] = { "here", "there", "ours" };
	static const unsigned sizes[] = { 8, 3000 };

	for (int place = 0; place < 3; place++)
		for (enum way way = UNMAPPED; way <= READ_ONLY; way++)
			for (int reads = 0; reads < 2; reads++)
				for (int size = 0; size < 2; size++) {
										/* A read-only page can be read. */
					if (way == READ_ONLY && reads == (place < 2))
						continue;
					enum way far = place < 2 ? way : STAYS, near = place < 2 ? STAYS : way;
					enum ibv_wr_opcode opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
					struct place me = begin(&ours, near), peer;
					char word;
					if (place) {
						HOLD(write(down[1], &far, sizeof far) == sizeof far);
						HOLD(read(up[0], &peer, sizeof peer) == sizeof peer);
						HOLD(write(down[1], &me, sizeof me) == sizeof me && read(up[0], &word, 1) == 1);
					} else {
						peer = begin(&second, far);
						connect_to(second.qp, me.gid, me.qpn, ACCESS, IBV_MTU_1024);
					}
					connect_to(ours.qp, peer.gid, peer.qpn, ACCESS, IBV_MTU_1024);
					HOLD(request(&ours, opcode, &peer, sizes[size]) == IBV_WC_SUCCESS);
					go(&ours, near);
					if (place)
						HOLD(write(down[1], "g", 1) == 1 && read(up[0], &word, 1) == 1);
					else
						go(&second, far);
					printf("%s %s %s %u: %s\n", places[place], names[way], reads ? "READ" : "WRITE", sizes[size],
						ibv_wc_status_str(request(&ours, opcode, &peer, sizes[size])));
					finish(&ours, near);
					if (place)
						HOLD(write(down[1], "f", 1) == 1);
					else
						finish(&second, far);
				}
	close(down[1]);
	int status;
	HOLD(waitpid(child, &status, 0) == child && !status);
	return 0;
}
