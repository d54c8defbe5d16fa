/* The transport over MPI. mpi.h stays inside this room. */
#ifndef GG_COMM_MPI_MPI_TRANSPORT_H
#define GG_COMM_MPI_MPI_TRANSPORT_H

#include "comm/mpi/mpi_halt.h"
#include "comm/transport.h"

typedef struct gg_mpi_info {
    bool initialised; /* by anybody */
    bool ours;        /* initialised here, so finalised here */
    int rank, size;   /* of the world; 0, 1 if not initialised */
    int thread_level; /* 0 single .. 3 multiple */
    bool fault_tolerance, cuda;
    char library[256]; /* MPI_Get_library_version, one line */
    char built_against[256];
    double init_seconds;
} gg_mpi_info;

/* Any thread. Starts MPI if nobody has (THREAD_FUNNELED at least). Fails with a library other than the one built
 * against, and a world whose size differs from `launched` (what the launcher said; 0: not known). */
gg_status gg_mpi_start(int launched);
/* Whether the calling thread may use MPI now. GG_ERROR_STATE where MPI has been finalised, in a process that was forked
 * from the one that started it, and where another thread uses it that still runs: MPI is FUNNELED, and collective calls
 * of two threads would meet those of other ranks in any order. The main thread may make a group that another one then
 * uses. Not for two threads at once. */
gg_status gg_mpi_check_use(void);
/* Fills info; works before start too (library version, built_against). */
gg_status gg_mpi_query(gg_mpi_info *info);
/* Finalises if started here, which waits for all ranks of the world: for ever, but after the timeout of the last
 * transport it says so on stderr. The end of the process calls it; with an exit code other than 0 that ends all ranks
 * instead. */
void gg_mpi_stop(void);
/* The process will end with this code, which MPI_Finalize then knows when it is called before the end. */
void gg_mpi_note_exit(int code);
/* Ends all ranks of the world with this exit code; returns only if MPI does not run, or belongs to the process that
 * this one was forked from. */
void gg_mpi_abort(int code);

/* Whether no rank of this job on this host has reported yet why the job ends. True once, and where that cannot be
 * determined. */
bool gg_mpi_first_to_report(void);

/* A transport over a duplicate of the communicator with this Fortran handle (MPI_Comm_c2f); world if use_world.
 * Collective: fails where ranks have not come after `timeout` seconds (0: for ever), which is then the transport's. */
gg_status gg_mpi_transport_create(bool use_world, int fortran_handle, double timeout, gg_transport **out);
/* Where its ranks stop; NULL: there is one rank. The transport's, every wait of which listens. */
gg_mpi_halt *gg_mpi_transport_halt(gg_transport *transport);
/* MPI counts in ints, so a message of more bytes than INT_MAX goes as pieces. For tests: pieces of `bytes` bytes, 64 to
 * INT_MAX. Nothing is in flight; all ranks set the same. */
void gg_mpi_transport_limit(gg_transport *transport, size_t bytes);

#endif
