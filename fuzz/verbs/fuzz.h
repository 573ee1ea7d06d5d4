// Random calls of the verbs interface: declarations that the files share (main.c describes the program).
#pragma once
#include <infiniband/verbs.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- objects (objects.c) --------------------------------------------------------------------------------------------

enum kind { CTX, PD, TD, PARENT, MR, MW, DM, CHANNEL, CQ, SRQ, XRCD, QP, AH, WQ, TABLE, FLOW, KINDS };

// Maximum number of objects that one object is made of: the entries of a table of work queues.
enum { HOLDS = 8 };

// An object made by a call. `users` counts the objects that were made of it and hold it: closing it meanwhile must give EBUSY.
struct object {
    enum kind kind;
    void *p;
    struct object *of[HOLDS];
    int users;
    // Windows may have been bound to it, and the program does not know which still are: closing may give EBUSY or not.
    bool maybe_held;
    int ctx;       // device index
    struct object *peer; // of a QP: the peer it was last connected to
    int groups;    // of a QP: number of multicast groups it is attached to
    bool extended; // of a CQ or QP: made by the _ex call, so that the extended API works
    bool pinned;   // of an MR: on the buffer, with room for every scatter entry
};

extern struct object *objects[256];
extern int number_of_objects;

struct object *keep(enum kind kind, void *p, int ctx, struct object *a, struct object *b, struct object *c, struct object *d);
// Records that `o` was also made of `held`.
void hold(struct object *o, struct object *held);
// Returns a random object of a kind on device `ctx` (-1: any device), or NULL if there is none.
struct object *some(enum kind kind, int ctx);
// Returns a PD or a parent domain, as a PD.
struct object *some_pd(int ctx);
// Returns memory for work on `of`: mostly a pinned region of the same domain.
struct ibv_mr *memory_for(struct object *of);
// Closes `o` and checks the result.
void close_object(struct object *o);
void close_all(void);

// --- chance (main.c) ------------------------------------------------------------------------------------------------

uint64_t draw(void);
static inline uint32_t below(uint32_t n) { return n ? draw() % n : 0; }
static inline bool one_in(uint32_t n) { return below(n) == 0; }
// Mostly returns `usual`, sometimes an extreme.
uint64_t odd(uint64_t usual);
// Returns some bits of `mask`, sometimes others.
uint64_t bits(uint64_t mask);

// --- judgement (errnos.c) -------------------------------------------------------------------------------------------

enum call {
    QUERY, ALLOC_PD, ALLOC_TD, ALLOC_PARENT, REG_MR, REREG_MR, ADVISE_MR, NULL_MR, DMABUF_MR, DM_MR, ALLOC_MW, BIND_MW,
    ALLOC_DM, COPY_DM, CREATE_CHANNEL, CREATE_CQ, CREATE_CQ_EX, RESIZE_CQ, MODIFY_CQ, REQ_NOTIFY, START_POLL,
    CREATE_SRQ, MODIFY_SRQ, SRQ_NUM, OPEN_XRCD, CREATE_QP, OPEN_QP, MODIFY_QP, QUERY_QP, RATE_LIMIT, ATTACH, DETACH, CREATE_AH,
    CREATE_FLOW, CREATE_WQ, MODIFY_WQ, CREATE_TABLE, CREATE_COUNTERS, ECE, POST_SEND, POST_RECV, WR_COMPLETE, GET_EVENT, POLLED, SUCCEEDED, CLOSE, CALLS
};

// Ends the program if the call's documentation does not list `error`; 0 is success.
void judge(enum call call, int error);
// The same for a call that returns a pointer; errno must be 0 before the call.
bool judge_pointer(enum call call, const void *p);
// Prints how often each call was made and succeeded.
void tell_counts(void);
// Reports a failure with seed and step, and ends the program.
_Noreturn void finding(const char *format, ...) __attribute__((format(printf, 1, 2)));

// --- the calls (calls.c, queues.c, work.c) --------------------------------------------------------------------------

#define DEVICES 2
#define BUFFER (1 << 16)
extern struct object *contexts[DEVICES];
extern struct ibv_device_attr limits;
extern union ibv_gid gids[DEVICES];
extern unsigned char *buffer;
extern uint64_t posted; // work requests posted so far, numbered 1..=posted

void call_memory(void);
void call_query(void);
void call_cq(void);
void call_srq(void);
void call_wq(void);
void call_qp(void);
void call_address(void);
void call_unusual(void);
void call_post_send(void);
void call_post_recv(void);
void call_poll(void);
void call_wr(void);
void call_events(void);
