/* Connects to itself by librdmacm, and ends the connection: connects ADDRESS PORT
 *
  * Reports a failed call or missing event on stderr, and destroys its objects. Status 0: all succeeded; 1: something
 * failed. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *caller, *called;

static int made(int good, const char *what)
{
	if (!good)
		fprintf(stderr, "connects: %s: %s\n", what, strerror(errno));
	return good;
}

/* The next event, which must be `wanted`. */
static int event(enum rdma_cm_event_type wanted)
{
	struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	errno = ETIMEDOUT;
	if (!made(poll(&ready, 1, 5000) == 1, rdma_event_str(wanted)) || !made(!rdma_get_cm_event(channel, &event), "event"))
		return 0;
	enum rdma_cm_event_type found = event->event;
	if (found == RDMA_CM_EVENT_CONNECT_REQUEST)
		called = event->id;
	int status = event->status;
	rdma_ack_cm_event(event);
	if (found != wanted)
		fprintf(stderr, "connects: %s (%d) instead of %s\n", rdma_event_str(found), status, rdma_event_str(wanted));
	return found == wanted;
}

static int queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };

	return made(!rdma_create_qp(id, NULL, &init), "rdma_create_qp");
}

/* Waits until both ends are established, in any order. */
static int established(void)
{
	return event(RDMA_CM_EVENT_ESTABLISHED) && event(RDMA_CM_EVENT_ESTABLISHED);
}

static int meet(struct sockaddr_in *at)
{
	struct sockaddr *address = (struct sockaddr *)at;
	struct rdma_conn_param how = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };

	return made((channel = rdma_create_event_channel()) != NULL, "rdma_create_event_channel") &&
	       made(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id") &&
	       made(!rdma_bind_addr(listener, address), "rdma_bind_addr") && made(!rdma_listen(listener, 4), "rdma_listen") &&
	       made(!rdma_create_id(channel, &caller, NULL, RDMA_PS_TCP), "rdma_create_id") &&
	       made(!rdma_resolve_addr(caller, NULL, address, 2000), "rdma_resolve_addr") &&
	       event(RDMA_CM_EVENT_ADDR_RESOLVED) && made(!rdma_resolve_route(caller, 2000), "rdma_resolve_route") &&
	       event(RDMA_CM_EVENT_ROUTE_RESOLVED) && queue_pair(caller) &&
	       made(!rdma_connect(caller, &how), "rdma_connect") && event(RDMA_CM_EVENT_CONNECT_REQUEST) &&
	       queue_pair(called) && made(!rdma_accept(called, &how), "rdma_accept") && established() &&
	       made(!rdma_disconnect(caller), "rdma_disconnect") && event(RDMA_CM_EVENT_DISCONNECTED);
}

static void leave(struct rdma_cm_id *id)
{
	if (!id)
		return;
	if (id->qp)
		rdma_destroy_qp(id);
	made(!rdma_destroy_id(id), "rdma_destroy_id");
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };

	if (argc != 3 || inet_pton(AF_INET, argv[1], &at.sin_addr) != 1)
		return 2;
	at.sin_port = htons(atoi(argv[2]));
	int good = meet(&at);
	leave(caller);
	leave(called);
	leave(listener);
	if (channel)
		rdma_destroy_event_channel(channel);
	return !good;
}
