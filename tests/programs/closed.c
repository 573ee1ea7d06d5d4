/* A program that closes all unknown descriptors, as a daemon does, and opens its own files: closed DEVICE
 *
 * Whatever it does with its device then, its files stay open and unchanged. The device works when opened again, and the program ends. */
#include "device.h"
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FILES 40
#define LAST 1024

static struct ibv_cq *cq;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char memory[1024];
static const int access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
static struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
	.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

/* Returns a queue pair that is its own peer, and creates its other objects. */
static struct ibv_qp *made(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	pd = ibv_alloc_pd(context);
	HOLD(pd && channel && (cq = ibv_create_cq(context, 16, NULL, channel, 0)));
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	HOLD(qp && (mr = ibv_reg_mr(pd, memory, sizeof memory, access_flags)));
	connect_to_itself(qp, access_flags, IBV_MTU_1024);
	return qp;
}

/* Writes to itself. Returns the status, -1 for an error or -2 if there is none within a second. */
static int write_once(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, 64, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)mr->addr + 512, mr->rkey } }, *bad;
	struct ibv_wc wc;

	if (ibv_post_send(qp, &wr, &bad))
		return -1;
	for (int i = 0; i < 1000; i++, usleep(1000)) {
		int n = ibv_poll_cq(cq, 1, &wc);
		if (n)
			return n < 0 ? -1 : (int)wc.status;
	}
	return -2;
}

int main(int argc, char **argv)
{
	HOLD(argc == 2);
	alarm(60);
	struct ibv_context *context = opened(argv[1]);
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *id;
	HOLD(events && !rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	struct ibv_qp *qp = made(context);
	HOLD(!ibv_req_notify_cq(cq, 0) && write_once(qp) == IBV_WC_SUCCESS);

	for (int fd = 3; fd < LAST; fd++)
		close(fd);
	int files[FILES], numbers = 0;
	char name[] = "/tmp/ironverbs-closed-XXXXXX";
	for (int i = 0; i < FILES; i++) {
		strcpy(name + sizeof name - 7, "XXXXXX");
		HOLD((files[i] = mkstemp(name)) >= 0 && !unlink(name) && write(files[i], "hello", 5) == 5);
		numbers += files[i] < LAST;
	}
	HOLD(numbers == FILES);

		/* Each call may fail. */
	for (int i = 0; i < 3; i++) {
		ibv_req_notify_cq(cq, 0);
		write_once(qp);
		struct ibv_qp *another = ibv_create_qp(pd, &init);
		if (another)
			ibv_destroy_qp(another);
		struct ibv_mr *region = ibv_reg_mr(pd, aligned_alloc(4096, 65536), 65536, access_flags);
		if (region)
			ibv_dereg_mr(region);
				/* A thread of the library checks its files once a second. */
		sleep(1);
	}
	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
		/* libibverbs and librdmacm close descriptors by number, which no check of the provider can prevent, so channel and device stay open. */
	ibv_dealloc_pd(pd);

	HOLD(write_once(made(opened(argv[1]))) == IBV_WC_SUCCESS);

	for (int i = 0; i < FILES; i++) {
		char bytes[64] = "";
		HOLD(pread(files[i], bytes, sizeof bytes, 0) == 5 && !strcmp(bytes, "hello"));
		HOLD(lseek(files[i], 0, SEEK_CUR) == 5 && !close(files[i]));
	}
	puts("the program's files are as they were ok");
	return 0;
}
