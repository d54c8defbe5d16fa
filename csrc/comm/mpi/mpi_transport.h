/* The transport over MPI. mpi.h stays inside this folder. */
#ifndef GG_COMM_MPI_MPI_TRANSPORT_H
#define GG_COMM_MPI_MPI_TRANSPORT_H

#include "comm/halt.h"
#include "comm/transport.h"

typedef struct gg_mpi_info {
    bool initialised; /* by any code */
    bool ours;        /* initialised here, so finalised here */
    int rank, size;   /* of the world; 0 and 1 before initialisation */
    int thread_level; /* 0 single .. 3 multiple */
    bool fault_tolerance, cuda;
    char library[256]; /* MPI_Get_library_version, one line */
    char built_against[256];
    double init_seconds;
} gg_mpi_info;

/* Any thread. Starts MPI unless it runs (at least THREAD_FUNNELED). Fails if the library differs from the build's, or
 * if the world's size differs from the launcher's (`launched`; 0 means not known). */
gg_status gg_mpi_start(int launched);
/* Checks that the calling thread may use MPI now. GG_ERROR_STATE: MPI has been finalised; this process was forked from
 * the process that started MPI; another thread uses MPI and still runs. MPI is FUNNELED, and collective calls of two
 * threads would meet other ranks' calls in any order. The main thread may make a group that another thread then uses.
 * Not for two threads at once. */
gg_status gg_mpi_check_use(void);
/* Fills info; works before start too (library version, built_against). */
gg_status gg_mpi_query(gg_mpi_info *info);
/* Finalises MPI if started here, which waits for all ranks of the world for ever; after the last transport's timeout it
 * reports the wait on stderr. Called at the end of the process. An exit code other than 0 ends all ranks instead. */
void gg_mpi_stop(void);
/* Announces the process's exit code, for MPI_Finalize calls before the end. */
void gg_mpi_note_exit(int code);
/* Ends all ranks of the world with this exit code; returns only if MPI does not run, or belongs to the process that
 * this one was forked from. */
void gg_mpi_abort(int code);

/* True once a host: no rank of this job here has reported yet why the job ends. Also true if that cannot be determined.
 */
bool gg_mpi_first_to_report(void);

/* A transport over a duplicate of the communicator with this Fortran handle (MPI_Comm_c2f); world if use_world.
 * Collective: fails if ranks have not come after `timeout` seconds (0 means for ever), which becomes the transport's
 * timeout. */
gg_status gg_mpi_transport_create(bool use_world, int fortran_handle, double timeout, gg_transport **out);
/* The halt of the transport's ranks, owned by the transport, whose waits listen. NULL means one rank. */
gg_halt *gg_mpi_transport_halt(gg_transport *transport);
/* MPI counts in ints, so a message of more than INT_MAX bytes goes as pieces. For tests: sets the size of pieces, 64 to
 * INT_MAX bytes. Nothing is in flight; all ranks set one size. */
void gg_mpi_transport_limit(gg_transport *transport, size_t bytes);

#endif
