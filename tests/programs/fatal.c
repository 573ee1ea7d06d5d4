/* Waits for the event that its device is lost: fatal DEVICE [FILE]
 *
 * With FILE it creates that file when the device is open, and sleeps. Without it the program sends to itself until the
 * event comes, polls the completions, and destroys its objects. */
#include "device.h"
#include <poll.h>
#include <time.h>

enum { DEPTH = 16, PAGE = 4096, PATIENCE = 30 };

static struct ibv_context *context;

/* Takes an event; 0: there is none within that many milliseconds. */
static int heard(int patience)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&fd, 1, patience) != 1)
		return 0;
	HOLD(!ibv_get_async_event(context, &event));
	printf("%s\n", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
	HOLD(event.event_type == IBV_EVENT_DEVICE_FATAL);
	return 1;
}

static void send_until_it_is_heard(void)
{
	char *memory = aligned_alloc(PAGE, PAGE);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = DEPTH, .max_send_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_wc wc[DEPTH];
	long sent = 0, done = 0;
	int got = 0;
	time_t begin = time(NULL);

	HOLD(pd && cq && mr && qp);
	connect_to_itself(qp, IBV_ACCESS_REMOTE_WRITE, IBV_MTU_1024);
	while (!heard(0)) {
		HOLD(time(NULL) - begin < PATIENCE);
		struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
		struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = { (uintptr_t)memory + 32, mr->rkey } };
		if (sent - done < DEPTH) {
			HOLD(!ibv_post_send(qp, &wr, &bad));
			sent++;
		}
		got = ibv_poll_cq(cq, DEPTH, wc);
		for (int i = 0; i < got; i++)
			HOLD(wc[i].status == IBV_WC_SUCCESS);
		done += got > 0 ? got : 0;
	}
	HOLD(done > DEPTH);
	while ((got = ibv_poll_cq(cq, DEPTH, wc)) > 0)
		;
	HOLD(got < 0);
	printf("no poll after that\n");
		/* The calls must return, with any result. */
	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	free(memory);
}

int main(int argc, char **argv)
{
	HOLD(argc > 1);
	context = opened(argv[1]);
	if (argc > 2) {
		FILE *file = fopen(argv[2], "w");

		HOLD(file);
		fclose(file);
		HOLD(heard(PATIENCE * 1000));
	} else {
		send_until_it_is_heard();
	}
	ibv_close_device(context);
	return 0;
}
