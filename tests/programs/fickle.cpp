// A listener that accepts a request and disconnects at once, and a client that prints its events in order. Usage: fickle, which listens
// for one peer; fickle ADDRESS
#include <cstdio>
#include <cstdlib>
#include <rdma/rdma_cma.h>

static void must(bool good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

static rdma_cm_event_type next(rdma_event_channel *channel, rdma_cm_id **id)
{
	rdma_cm_event *event;
	must(!rdma_get_cm_event(channel, &event), "event");
	rdma_cm_event_type type = event->event;
	*id = event->id;
	rdma_ack_cm_event(event);
	return type;
}

int main(int argc, char **argv)
{
	bool listens = argc < 2;
	rdma_addrinfo hints = {}, *info;
	hints.ai_port_space = RDMA_PS_TCP;
	hints.ai_flags = listens ? RAI_PASSIVE : 0;
	must(!rdma_getaddrinfo(listens ? "0.0.0.0" : argv[1], "7471", &hints, &info), "address");
	rdma_event_channel *channel = rdma_create_event_channel();
	rdma_cm_id *id, *other;
	must(channel && !rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), "id");
	rdma_conn_param param = {};
	param.retry_count = param.rnr_retry_count = 7;
	// A queue pair of the program's own, so that each event comes as it is.
	param.qp_num = 77;
	if (listens) {
		must(!rdma_bind_addr(id, info->ai_src_addr) && !rdma_listen(id, 1), "listen");
		must(next(channel, &other) == RDMA_CM_EVENT_CONNECT_REQUEST, "request");
		must(!rdma_accept(other, &param) && !rdma_destroy_id(other), "accept and take back");
		say("taken back");
		return 0;
	}
	must(!rdma_resolve_addr(id, nullptr, info->ai_dst_addr, 2000), "resolve");
	must(next(channel, &other) == RDMA_CM_EVENT_ADDR_RESOLVED, "address");
	must(!rdma_resolve_route(id, 2000) && next(channel, &other) == RDMA_CM_EVENT_ROUTE_RESOLVED, "route");
	must(!rdma_connect(id, &param), "connect");
	say("asked");
	for (;;) {
		rdma_cm_event_type event = next(channel, &other);
		say(rdma_event_str(event));
		if (event != RDMA_CM_EVENT_CONNECT_RESPONSE)
			break;
	}
	return 0;
}
