/* Makes a system call fail that needs memory, space or a descriptor, in a program and its children. For LD_PRELOAD.
 *
 * SHORTAGE="FILE KIND FIRST LAST ERRNO": calls FIRST to LAST of KIND, counted over all these processes, fail with ERRNO.
 * FILE holds the counts, one for each kind in the order of `kinds`, and behind them the first call that failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, FALLOCATE, HOLE, MMAP, MEMFD, SOCKET, DESCRIPTOR, WRITE, THREAD, FORK, KINDS };
static const char *const kinds[KINDS] = { "open", "fallocate", "hole", "mmap", "memfd", "socket", "descriptor", "write",
	"thread", "fork" };

struct counts {
	uint32_t count[KINDS];
	uint32_t failed;
	char what[256];
};

/* SECCOMP_FILTER_FLAG_NEW_LISTENER. */
#define SECCOMP_LISTENS (1 << 3)

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static struct counts *counts;
static enum kind wanted = KINDS;
static unsigned first, last;
static int code;

__attribute__((constructor)) static void begin(void)
{
	char file[256], kind[32];
	const char *how = getenv("SHORTAGE");

	if (counts || !how || sscanf(how, "%255s %31s %u %u %d", file, kind, &first, &last, &code) != 5)
		return;
	int fd = REAL(open)(file, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	void *at = REAL(mmap)(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return;
	for (int k = 0; k < KINDS; k++)
		if (!strcmp(kind, kinds[k]))
			wanted = k;
	counts = at;
}

/* Counts a call. Returns 1 and sets errno if it must fail. */
static int fails(enum kind kind, const char *call, const char *what)
{
	if (!counts)
		begin();
	if (!counts)
		return 0;
	unsigned number = __atomic_add_fetch(&counts->count[kind], 1, __ATOMIC_RELAXED);
	if (kind != wanted || number < first || number > last)
		return 0;
	if (!__atomic_exchange_n(&counts->failed, 1, __ATOMIC_RELAXED))
		snprintf(counts->what, sizeof(counts->what), "%s: %s(%s)", program_invocation_short_name, call, what);
	errno = code;
	return 1;
}

/* A call that returns -1 on failure. */
#define CALL(kind, name, parameters, arguments, what) \
	int name parameters \
	{ \
		return fails(kind, #name, what) ? -1 : REAL(name) arguments; \
	}
/* A call that returns NULL. */
#define POINTER(kind, type, name, parameters, arguments, what) \
	type *name parameters \
	{ \
		return fails(kind, #name, what) ? NULL : REAL(name) arguments; \
	}
/* A call that returns its error number. */
#define CODE(kind, name, parameters, arguments) \
	int name parameters \
	{ \
		int before = errno, failed = fails(kind, #name, ""), why = errno; \
		errno = before; \
		return failed ? why : REAL(name) arguments; \
	}
/* A call with a mode if it may create a file. */
#define OPENS(name, parameters, ...) \
	int name parameters \
	{ \
		va_list more; \
		va_start(more, flags); \
		int creates = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; \
		mode_t mode = creates ? va_arg(more, mode_t) : 0; \
		va_end(more); \
		return fails(OPEN, #name, path) ? -1 : REAL(name)(__VA_ARGS__, mode); \
	}

OPENS(open, (const char *path, int flags, ...), path, flags)
OPENS(open64, (const char *path, int flags, ...), path, flags)
OPENS(openat, (int dir, const char *path, int flags, ...), dir, path, flags)
OPENS(openat64, (int dir, const char *path, int flags, ...), dir, path, flags)
POINTER(OPEN, FILE, fopen, (const char *path, const char *mode), (path, mode), path)
POINTER(OPEN, FILE, fopen64, (const char *path, const char *mode), (path, mode), path)
POINTER(OPEN, DIR, opendir, (const char *path), (path), path)

#define ROOM_OR_HOLE (mode & FALLOC_FL_PUNCH_HOLE ? HOLE : FALLOCATE)
CALL(ROOM_OR_HOLE, fallocate, (int fd, int mode, off_t at, off_t len), (fd, mode, at, len), "")
CALL(ROOM_OR_HOLE, fallocate64, (int fd, int mode, off64_t at, off64_t len), (fd, mode, at, len), "")
CALL(FALLOCATE, ftruncate, (int fd, off_t len), (fd, len), "")
CALL(FALLOCATE, ftruncate64, (int fd, off64_t len), (fd, len), "")

/* Stacks of threads never fail, because the C library and the runtime end the program without one. */
#define MAPS(name, offset) \
	void *name(void *at, size_t len, int protection, int flags, int fd, offset from) \
	{ \
		if (!(flags & MAP_STACK) && fails(MMAP, #name, fd < 0 ? "no file" : "file")) \
			return MAP_FAILED; \
		return REAL(name)(at, len, protection, flags, fd, from); \
	}
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

CALL(MEMFD, memfd_create, (const char *name, unsigned flags), (name, flags), name)

CALL(SOCKET, socket, (int domain, int type, int protocol), (domain, type, protocol), "")
CALL(SOCKET, socketpair, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds), "")
CALL(SOCKET, accept, (int fd, struct sockaddr *from, socklen_t *len), (fd, from, len), "")
CALL(SOCKET, accept4, (int fd, struct sockaddr *from, socklen_t *len, int flags), (fd, from, len, flags), "")

CALL(DESCRIPTOR, eventfd, (unsigned count, int flags), (count, flags), "")
CALL(DESCRIPTOR, pipe, (int fds[2]), (fds), "")
CALL(DESCRIPTOR, pipe2, (int fds[2], int flags), (fds, flags), "")
CALL(DESCRIPTOR, epoll_create1, (int flags), (flags), "")
CALL(DESCRIPTOR, inotify_init1, (int flags), (flags), "")
CALL(DESCRIPTOR, timerfd_create, (int clock, int flags), (clock, flags), "")
CALL(DESCRIPTOR, signalfd, (int fd, const sigset_t *mask, int flags), (fd, mask, flags), "")
CALL(DESCRIPTOR, dup, (int fd), (fd), "")

/* Some commands duplicate; all have one argument at most, as large as a pointer. */
#define CONTROLS(name) \
	int name(int fd, int command, ...) \
	{ \
		va_list more; \
		va_start(more, command); \
		void *argument = va_arg(more, void *); \
		va_end(more); \
		int copies = command == F_DUPFD || command == F_DUPFD_CLOEXEC; \
		return copies && fails(DESCRIPTOR, #name, "duplicate") ? -1 : REAL(name)(fd, command, argument); \
	}
CONTROLS(fcntl)
CONTROLS(fcntl64)

static int regular(int fd)
{
	struct stat meta;
	int before = errno, is = !fstat(fd, &meta) && S_ISREG(meta.st_mode);

	errno = before;
	return is;
}

#define WRITES(name, parameters, arguments) \
	ssize_t name parameters \
	{ \
		return regular(fd) && fails(WRITE, #name, "file") ? -1 : REAL(name) arguments; \
	}
WRITES(write, (int fd, const void *bytes, size_t len), (fd, bytes, len))
WRITES(pwrite, (int fd, const void *bytes, size_t len, off_t at), (fd, bytes, len, at))
WRITES(pwrite64, (int fd, const void *bytes, size_t len, off64_t at), (fd, bytes, len, at))
WRITES(writev, (int fd, const struct iovec *pieces, int count), (fd, pieces, count))

CODE(THREAD, pthread_create, (pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *with),
     (thread, attr, body, with))
CALL(FORK, fork, (void), (), "")

/* Calls without a function in the C library. */
long syscall(long number, ...)
{
	va_list more;
	long a[6];

	va_start(more, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(more, long);
	va_end(more);
	enum kind kind = KINDS;
	if (number == SYS_memfd_create)
		kind = MEMFD;
	else if (number == SYS_open_tree || number == SYS_openat2)
		kind = OPEN;
	else if (number == SYS_pidfd_open || number == SYS_pidfd_getfd || number == SYS_userfaultfd ||
		 (number == SYS_seccomp && a[1] & SECCOMP_LISTENS))
		kind = DESCRIPTOR;
	char name[32] = "";
	if (kind != KINDS)
		snprintf(name, sizeof(name), "%ld", number);
	if (kind != KINDS && fails(kind, "syscall", name))
		return -1;
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
