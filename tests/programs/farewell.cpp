// Connections of a static object that ends them in its destructor, as C++ libraries do: the destructor disconnects and waits for the
// thread that waits for the event. Usage: farewell, which listens for one peer; farewell ADDRESS [atexit]; farewell ADDRESS SOURCE, which
// stays connected forever.
#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <thread>
#include <unistd.h>

static void must(bool good, const char *what)
{
	if (!good) {
		perror(what);
		_Exit(1);
	}
}

struct End {
	rdma_event_channel *channel = nullptr;
	rdma_cm_id *id = nullptr;
	std::thread events;

	// The next event, which must be this one; its id is this end's from now on.
	void expect(rdma_cm_event_type wanted)
	{
		rdma_cm_event *event;
		must(!rdma_get_cm_event(channel, &event), "event");
		if (event->event != wanted) {
			fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(wanted));
			_Exit(1);
		}
		id = event->id;
		rdma_ack_cm_event(event);
	}

	void queue_pair()
	{
		ibv_qp_init_attr attr = {};
		attr.qp_type = IBV_QPT_RC;
		attr.cap = { 1, 1, 1, 1, 0 };
		must(!rdma_create_qp(id, nullptr, &attr), "queue pair");
	}

	void wait_for_the_end()
	{
		events = std::thread([this] {
			expect(RDMA_CM_EVENT_DISCONNECTED);
			puts("disconnected");
			fflush(stdout);
		});
	}

	void part()
	{
		if (!events.joinable())
			return;
		must(!rdma_disconnect(id), "disconnect");
		events.join();
		rdma_destroy_qp(id);
		must(!rdma_destroy_id(id), "destroy");
		rdma_destroy_event_channel(channel);
		puts("parted");
		fflush(stdout);
	}

	~End() { part(); }
};

// Constructed before main, so destroyed after all later objects.
static End end;

int main(int argc, char **argv)
{
	rdma_addrinfo hints = {}, *info;
	hints.ai_port_space = RDMA_PS_TCP;
	if (argc < 2)
		hints.ai_flags = RAI_PASSIVE;
	must(!rdma_getaddrinfo(argc < 2 ? "0.0.0.0" : argv[1], "7471", &hints, &info), "address");
	must((end.channel = rdma_create_event_channel()) != nullptr, "channel");
	must(!rdma_create_id(end.channel, &end.id, nullptr, RDMA_PS_TCP), "id");
	rdma_conn_param param = {};
	param.retry_count = param.rnr_retry_count = 7;
	if (argc < 2) {
		must(!rdma_bind_addr(end.id, info->ai_src_addr) && !rdma_listen(end.id, 1), "listen");
		end.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
		end.queue_pair();
		must(!rdma_accept(end.id, &param), "accept");
		end.expect(RDMA_CM_EVENT_ESTABLISHED);
		end.wait_for_the_end();
		end.events.join();
		return 0;
	}
	bool stays = argc > 2 && strcmp(argv[2], "atexit");
	sockaddr_in source = {};
	source.sin_family = AF_INET;
	if (stays)
		must(inet_pton(AF_INET, argv[2], &source.sin_addr) == 1, "source");
	else if (argc > 2)
		must(!atexit([] { end.part(); }), "atexit");
	must(!rdma_resolve_addr(end.id, stays ? (sockaddr *)&source : nullptr, info->ai_dst_addr, 2000), "resolve");
	end.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	must(!rdma_resolve_route(end.id, 2000), "route");
	end.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	end.queue_pair();
	must(!rdma_connect(end.id, &param), "connect");
	end.expect(RDMA_CM_EVENT_ESTABLISHED);
	if (stays) {
		puts("established");
		fflush(stdout);
	}
	end.wait_for_the_end();
	while (stays)
		sleep(1);
	return 0;
}
