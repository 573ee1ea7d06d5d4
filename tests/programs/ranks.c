// Two MPI ranks: `ranks hello`, or `ranks pingpong`, which like OSU's osu_latency prints the size of a message in bytes
// and the time one takes in microseconds, and checks every byte.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 1 << 20 };

static void pingpong(int me)
{
    unsigned char *out = malloc(LARGEST), *in = malloc(LARGEST);
    if (!out || !in)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int size = 0; size <= LARGEST; size = size ? size * 4 : 1) {
        int rounds = size > 65536 ? 20 : 200;
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int round = 0; round < rounds; round++) {
            memset(out, 1 + (round + size) % 250, size);
            if (me == 0)
                MPI_Send(out, size, MPI_BYTE, 1, round, MPI_COMM_WORLD);
            MPI_Recv(in, size, MPI_BYTE, 1 - me, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (memcmp(in, out, size)) {
                fprintf(stderr, "rank %d: wrong data, %d bytes, round %d\n", me, size, round);
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
            if (me == 1)
                MPI_Send(out, size, MPI_BYTE, 0, round, MPI_COMM_WORLD);
            memset(in, 0, size);
        }
        if (me == 0)
            printf("%-10d %.2f\n", size, (MPI_Wtime() - start) * 1e6 / rounds / 2);
    }
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    int me, all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &all);
    int sum = 0, mine = me + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (argc > 1 && !strcmp(argv[1], "pingpong") && all == 2)
        pingpong(me);
    else
        printf("hello from %d of %d, together %d\n", me, all, sum);
    MPI_Finalize();
    return 0;
}
