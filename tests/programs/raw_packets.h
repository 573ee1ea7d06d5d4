/* What programs share that send and receive whole frames. */
#include <infiniband/verbs.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The device of that name. */
static struct ibv_context *opened(const char *name)
{
	struct ibv_context *context = NULL;
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	HOLD(context);
	ibv_free_device_list(list);
	return context;
}

/* Puts CAP_NET_RAW in effect or takes it back; whether it was in effect. */
static int net_raw(int on)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct sets[2];
	uint32_t bit = 1u << CAP_NET_RAW;
	int was;

	HOLD(!syscall(SYS_capget, &header, sets));
	was = !!(sets[0].effective & bit);
	sets[0].effective = on ? sets[0].effective | bit : sets[0].effective & ~bit;
	HOLD(!syscall(SYS_capset, &header, sets));
	return was;
}
