/* Opens a device, says so by making the file named behind it, and waits for the word that the device is gone. */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (; argc > 2 && list && *list && strcmp(ibv_get_device_name(*list), argv[1]); list++)
		;
	if (argc < 3 || !list || !*list)
		return 2;
	struct ibv_context *context = ibv_open_device(*list);
	FILE *file = context ? fopen(argv[2], "w") : NULL;
	if (!file)
		return 3;
	fclose(file);
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	if (poll(&fd, 1, 30000) != 1 || ibv_get_async_event(context, &event))
		return 4;
	printf("%s\n", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
	return event.event_type == IBV_EVENT_DEVICE_FATAL ? 0 : 5;
}
