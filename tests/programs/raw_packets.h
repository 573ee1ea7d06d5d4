/* Shared code of programs that send and receive whole frames. */
#include "device.h"
#include <linux/capability.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Puts CAP_NET_RAW in effect or removes it. Returns the previous setting. */
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
