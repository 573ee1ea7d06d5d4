/* Tests the limit of registered memory: pinned DEVICE limited|unlimited
 *
 * It gives up CAP_IPC_LOCK and sets RLIMIT_MEMLOCK to 64 KiB. */
#include "device.h"
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KIB 1024ul

static struct ibv_pd *pd;

static struct ibv_mr *registered(void *at, size_t bytes, int access)
{
	errno = 0;
	return ibv_reg_mr(pd, at, bytes, IBV_ACCESS_LOCAL_WRITE | access);
}

int main(int argc, char **argv)
{
	HOLD(argc == 3);
	int limited = !strcmp(argv[2], "limited");
	struct ibv_context *context = opened(argv[1]);
	HOLD((pd = ibv_alloc_pd(context)));
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];
	HOLD(!syscall(SYS_capget, &header, sets));
	sets[0].effective &= ~(1u << CAP_IPC_LOCK);
	HOLD(!syscall(SYS_capset, &header, sets));
	struct rlimit limit = { 64 * KIB, 64 * KIB };
	HOLD(!setrlimit(RLIMIT_MEMLOCK, &limit));

	char *memory = aligned_alloc(4096, 1024 * KIB);
	HOLD(memory);
	struct ibv_mr *large = registered(memory, 1024 * KIB, 0);
	HOLD(limited ? !large && errno == ENOMEM : large != NULL);
	if (large)
		HOLD(!ibv_dereg_mr(large));

		/* A region that begins or ends within a page counts as the whole page; on-demand memory is not pinned. */
	struct ibv_mr *first = registered(memory, 32 * KIB, 0), *second = registered(memory + 64 * KIB + 8, 28 * KIB, 0);
	HOLD(first && second);
	struct ibv_mr *one = registered(memory + 256 * KIB, 8, 0);
	HOLD(limited ? !one && errno == ENOMEM : one != NULL);
	struct ibv_mr *demanded = registered(memory + 512 * KIB, 512 * KIB, IBV_ACCESS_ON_DEMAND);
	HOLD(demanded);
	HOLD(!ibv_dereg_mr(second));
	HOLD((second = registered(memory + 256 * KIB, 8, 0)));
	printf("held to its limit: %s ok\n", argv[2]);
	return 0;
}
