/* Objects that one context creates and another uses, and domains that a file names, through the stock libibverbs.
 * Prints a line for each promise that is kept; ends with 1 at the first that is not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

static struct ibv_context *context, *second;

static void import(void)
{
	int fd = dup(context->cmd_fd);

	HOLD(fd >= 0);
	second = ibv_import_device(fd);
	HOLD(second);
}

/* A domain lasts as long as an object in it, created through any of its handles. */
static void domain(void)
{
	static char memory[4096];
	struct ibv_pd *pd = ibv_alloc_pd(context), *same;
	struct ibv_mr *mr;

	HOLD(pd);
	same = ibv_import_pd(second, pd->handle);
	HOLD(same);
	HOLD(ibv_dealloc_pd(pd) == EBUSY);
	HOLD(ibv_dealloc_pd(same) == EBUSY);
	mr = ibv_reg_mr(same, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	HOLD(mr);
	ibv_unimport_pd(same);
	HOLD(ibv_dealloc_pd(pd) == EBUSY);
	HOLD(!ibv_dereg_mr(mr));
	HOLD(!ibv_dealloc_pd(pd));
	HOLD(!ibv_import_pd(second, 1 << 20) && errno == ENOENT);
	puts("domain ok");
}

/* The second context gets no events and no error: a read waits, or gives EAGAIN. */
static void events(void)
{
	struct pollfd file = { .fd = second->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	int flags = fcntl(second->async_fd, F_GETFL);

	HOLD(second->async_fd != context->async_fd && flags >= 0);
	HOLD(poll(&file, 1, 100) == 0);
	HOLD(!fcntl(second->async_fd, F_SETFL, flags | O_NONBLOCK));
	errno = 0;
	HOLD(ibv_get_async_event(second, &event) == -1 && errno == EAGAIN);
	puts("events ok");
}

/* Returns the number of this process's descriptors for a file. */
static int holders(const struct stat *wanted)
{
	int found = 0;

	for (int fd = 0; fd < 1024; fd++) {
		struct stat is;

		if (!fstat(fd, &is) && is.st_dev == wanted->st_dev && is.st_ino == wanted->st_ino)
			found++;
	}
	return found;
}

/* An open domain keeps its file open, so that no other file gets the same inode number. */
static void named(void)
{
	char name[] = "/tmp/imports-XXXXXX";
	int fd = mkstemp(name);
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd,
		.oflags = O_CREAT | O_EXCL };
	struct ibv_xrcd *xrcd;
	struct stat file;

	HOLD(fd >= 0 && !unlink(name) && !fstat(fd, &file));
	xrcd = ibv_open_xrcd(context, &init);
	HOLD(xrcd);
	close(fd);
	HOLD(holders(&file) == 1);
	HOLD(!ibv_close_xrcd(xrcd));
	HOLD(holders(&file) == 0);
		/* A refused domain keeps no file open. */
	fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
	HOLD(fd >= 0 && !fstat(fd, &file));
	init.fd = fd;
	init.oflags = 0;
	HOLD(!ibv_open_xrcd(context, &init) && errno == EAGAIN);
	HOLD(holders(&file) == 1);
	close(fd);
	puts("named ok");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	HOLD(argc == 2);
	context = opened(argv[1]);
	import();
	domain();
	events();
	named();
	HOLD(!ibv_close_device(second) && !ibv_close_device(context));
	return 0;
}
