// Verbs calls in random order with random attributes, through the stock libibverbs, as fast as possible.
//
//   verbs [--seed N] [--seconds N] DEVICE DEVICE
//
// Every seed runs in its own process: a few hundred calls on two devices, then everything is closed in an order that is mostly wrong, or
// the process ends without closing anything. The process must not crash and must end within LIMIT seconds. It must only get errors that the
// calls' documentation lists (errnos.c), get EBUSY for objects in use and close the others, find a QP in its old state when a modify is refused,
// and have as many descriptors open afterwards as before.
//
// Without --seconds only the given seed runs, and prints each step.
#include "fuzz.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT = 20, STEPS = 400, LIVES = 2 };

struct object *contexts[DEVICES];
struct ibv_device_attr limits;
union ibv_gid gids[DEVICES];
unsigned char *buffer;

static uint64_t seed, state;
static int step;
static bool talkative;

uint64_t draw(void)
{
    // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

uint64_t odd(uint64_t usual)
{
    static const uint64_t extremes[] = { 0, 1, 2, 7, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX };
    if (!one_in(40))
        return usual;
    return one_in(3) ? draw() : one_in(2) ? usual + 1 : extremes[below(sizeof(extremes) / sizeof(*extremes))];
}

uint64_t bits(uint64_t mask)
{
    uint64_t some = one_in(2) ? mask : mask & draw();
    return one_in(40) ? some ^ 1ull << below(32) : some;
}

void finding(const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    printf("verbs: seed %llu step %d: ", (unsigned long long)seed, step);
    vprintf(format, rest);
    printf("\n");
    fflush(stdout);
    va_end(rest);
    _exit(3);
}

static int descriptors(void)
{
    int number = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return 0;
    while (readdir(dir))
        number++;
    closedir(dir);
    return number;
}

static const struct { const char *name; void (*call)(void); int weight; } calls[] = {
    { "memory", call_memory, 8 }, { "query", call_query, 1 },       { "cq", call_cq, 6 },
    { "srq", call_srq, 4 },       { "wq", call_wq, 6 },             { "qp", call_qp, 10 },
    { "address", call_address, 3 }, { "unusual", call_unusual, 2 }, { "send", call_post_send, 14 },
    { "recv", call_post_recv, 10 }, { "poll", call_poll, 14 },      { "wr", call_wr, 6 },
    { "events", call_events, 3 },
};

static void close_one(void)
{
    // The devices themselves stay open.
    struct object *o = objects[below(number_of_objects)];
    if (o->kind != CTX)
        close_object(o);
}

// Opens a device, uses and closes it. `neat`: closes everything at the end.
static void life(char *const *names, bool neat)
{
    int number, all = 0;
    struct ibv_device **list = ibv_get_device_list(&number);
    for (int i = 0; list && i < DEVICES; i++)
        for (int d = 0; d < number; d++)
            if (!strcmp(ibv_get_device_name(list[d]), names[i])) {
                struct ibv_context *context = ibv_open_device(list[d]);
                if (!context)
                    finding("%s cannot be opened: %d", names[i], errno);
                fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
                if (ibv_query_device(context, &limits) || ibv_query_gid(context, 1, 1, &gids[i]))
                    finding("%s cannot be asked", names[i]);
                contexts[i] = keep(CTX, context, i, NULL, NULL, NULL, NULL);
            }
    if (list)
        ibv_free_device_list(list);
    for (int i = 0; i < DEVICES; i++)
        if (!contexts[i])
            finding("no device %s", names[i]);
    for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++)
        all += calls[i].weight;
    for (step = 0; step < STEPS; step++) {
        int chosen = below(all + 3);
        const char *name = "close";
        void (*call)(void) = close_one;
        for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls) && call == close_one; i++) {
            if (chosen < calls[i].weight)
                name = calls[i].name, call = calls[i].call;
            chosen -= calls[i].weight;
        }
        if (number_of_objects > 200)
            call = close_one;
        if (talkative)
            fprintf(stderr, "step %d: %s, %d objects\n", step, name, number_of_objects);
        call();
    }
    if (neat) {
        close_all();
        contexts[0] = contexts[1] = NULL;
    }
}

static int episode(char *const *names)
{
    state = seed * 0x2545f4914f6cdd1d;
    buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        abort();
    bool neat = !one_in(3);
    int before = 0;
    for (int i = 0; i < LIVES; i++) {
        life(names, neat);
        if (!neat)
            return 0;
                        // The first life loads libraries and opens descriptors that stay.
        int now = descriptors();
        if (i && now > before)
            finding("%d descriptors were open, and now %d are", before, now);
        before = now;
    }
    return 0;
}

int main(int argc, char **argv)
{
    long seconds = 0;
    seed = 1;
    int at = 1;
    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        if (!strcmp(argv[at], "--seed"))
            seed = strtoull(argv[at + 1], NULL, 0);
        else if (!strcmp(argv[at], "--seconds"))
            seconds = atol(argv[at + 1]);
    }
    if (argc - at != DEVICES) {
        fprintf(stderr, "usage: verbs [--seed N] [--seconds N] DEVICE DEVICE\n");
        return 2;
    }
    if (!seconds) {
        talkative = true;
        int status = episode(argv + at);
        tell_counts();
        return status;
    }
    time_t end = time(NULL) + seconds;
    uint64_t first = seed;
    for (; time(NULL) < end; seed++) {
        pid_t child = fork();
        if (child < 0)
            abort();
        if (child == 0) {
            alarm(LIMIT);
            exit(episode(argv + at));
        }
        int status;
        if (waitpid(child, &status, 0) < 0)
            abort();
        if (WIFSIGNALED(status)) {
            printf("verbs: seed %llu: %s\n", (unsigned long long)seed,
                   WTERMSIG(status) == SIGALRM ? "did not end" : strsignal(WTERMSIG(status)));
            return 1;
        }
        if (WEXITSTATUS(status))
            return 1;
    }
    printf("verbs: seeds %llu to %llu, nothing found\n", (unsigned long long)first, (unsigned long long)seed - 1);
    return 0;
}
