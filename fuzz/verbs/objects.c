// The objects that the calls made, and how they are closed.
#include "fuzz.h"

struct object *objects[256];
int number_of_objects;

void hold(struct object *o, struct object *held)
{
    if (!held)
        return;
    for (int i = 0; i < HOLDS; i++)
        if (!o->of[i]) {
            o->of[i] = held;
            held->users++;
            return;
        }
    abort();
}

struct object *keep(enum kind kind, void *p, int ctx, struct object *a, struct object *b, struct object *c, struct object *d)
{
    struct object *o = calloc(1, sizeof(*o));
    if (!o)
        abort();
    *o = (struct object){ .kind = kind, .p = p, .ctx = ctx };
    struct object *of[] = { a, b, c, d };
    for (int i = 0; i < 4; i++)
        hold(o, of[i]);
    objects[number_of_objects++] = o;
    return o;
}

struct object *some(enum kind kind, int ctx)
{
    int start = below(number_of_objects + 1);
    for (int i = 0; i < number_of_objects; i++) {
        struct object *o = objects[(start + i) % number_of_objects];
        if (o->kind == kind && (ctx < 0 || o->ctx == ctx))
            return o;
    }
    return NULL;
}

struct object *some_pd(int ctx)
{
    struct object *o = one_in(4) ? some(PARENT, ctx) : NULL;
    return o ? o : some(PD, ctx);
}

struct ibv_mr *memory_for(struct object *of)
{
    struct object *mr = some(MR, of->ctx);
    for (int i = 0; i < number_of_objects && !one_in(16); i++)
        if (objects[i]->kind == MR && objects[i]->pinned && objects[i]->of[0] == of->of[0])
            mr = objects[i];
    return mr ? mr->p : NULL;
}

static int close_by_kind(struct object *o)
{
    switch (o->kind) {
    case PD:
    case PARENT: return ibv_dealloc_pd(o->p);
    case TD: return ibv_dealloc_td(o->p);
    case MR: return ibv_dereg_mr(o->p);
    case MW: return ibv_dealloc_mw(o->p);
    case DM: return ibv_free_dm(o->p);
    case CHANNEL: return ibv_destroy_comp_channel(o->p);
    case CQ: return ibv_destroy_cq(o->p);
    case SRQ: return ibv_destroy_srq(o->p);
    case XRCD: return ibv_close_xrcd(o->p);
    case QP: return ibv_destroy_qp(o->p);
    case WQ: return ibv_destroy_wq(o->p);
    case TABLE: return ibv_destroy_rwq_ind_table(o->p);
    case FLOW: return ibv_destroy_flow(o->p);
    case AH: return ibv_destroy_ah(o->p);
    default: return ibv_close_device(o->p);
    }
}

static const char *const names[KINDS] = { "context", "PD", "TD", "parent domain", "MR", "MW", "DM", "channel", "CQ", "SRQ",
                                          "XRCD", "QP", "AH", "WQ", "indirection table", "flow" };

void close_object(struct object *o)
{
    if (o->kind == CTX && o->users)
        return; // libibverbs leaves that to the caller
    int error = close_by_kind(o);
    judge(CLOSE, error);
    bool held = o->users || o->groups;
    if (held && error != EBUSY)
        finding("closing a %s that %d others and %d groups hold: expected EBUSY, found %d", names[o->kind], o->users, o->groups, error);
    if (!held && error && !(o->maybe_held && error == EBUSY))
        finding("closing a %s that nothing holds: expected 0, found %d", names[o->kind], error);
    if (error)
        return;
    for (int i = 0; i < HOLDS; i++)
        if (o->of[i])
            o->of[i]->users--;
    for (int i = 0; i < number_of_objects; i++) {
        if (objects[i] == o)
            objects[i] = objects[--number_of_objects];
        if (i < number_of_objects && objects[i]->peer == o)
            objects[i]->peer = NULL;
    }
    free(o);
}

void close_all(void)
{
    // Closing in reverse order would always be right; this order is wrong most of the time, and still terminates.
    for (int round = 0; number_of_objects; round++) {
        if (round > 600)
            finding("%d objects cannot be closed, one a %s", number_of_objects, names[objects[0]->kind]);
        for (int i = 0; i < number_of_objects; i++) {
            struct object *o = objects[i];
            if (o->kind == QP && o->groups)
                o->groups = 0, ibv_detach_mcast(o->p, &gids[0], 0);
            int before = number_of_objects;
            if (o->users == 0 || one_in(8))
                close_object(o);
            i -= before - number_of_objects;
        }
    }
}
