/* A team: the ranks that train together, of which some live in this process.
 *
 * One rank alone and a rank of MPI have one local rank, a virtual cluster has all of them. The code that drives
 * training runs a function on every local rank and need not know the kind. Used by one thread at a time. */
#ifndef GG_COMM_TEAM_H
#define GG_COMM_TEAM_H

#include "comm/link.h"
#include "comm/transport.h"
#include "comm/virtual/virtual.h"

typedef struct gg_team gg_team;

gg_status gg_team_create_single(gg_team **out);
/* Over a duplicate of an MPI communicator, as gg_mpi_transport_create; slowed down by `network` unless it is NULL. MPI
 * must have been started. Collective. */
gg_status gg_team_create_mpi(bool use_world, int fortran_handle, const gg_network *network, double timeout,
                             gg_team **out);
gg_status gg_team_create_virtual(const gg_virtual_options *options, gg_team **out);
void gg_team_retain(gg_team *team);
void gg_team_release(gg_team *team); /* the last one destroys; NULL is fine */

const char *gg_team_kind(const gg_team *team); /* "single", "mpi", "virtual" */
int gg_team_size(const gg_team *team);
int gg_team_rank(const gg_team *team);  /* of the first local rank */
int gg_team_local(const gg_team *team); /* number of local ranks */
gg_transport *gg_team_transport(gg_team *team, int local);
void gg_team_set_timeout(gg_team *team, double seconds);
/* The clock of a local rank, with nothing in flight. false: not a virtual one, which can be neither kept nor set. */
bool gg_team_get_clock(const gg_team *team, int local, gg_virtual_clock *out);
bool gg_team_set_clock(gg_team *team, int local, gg_virtual_clock clock);

/* How ranks of MPI come to stop after the same step, when one of them wants to (comm/mpi/mpi_halt.h); other teams ask
 * nobody. Begin: before a round of steps, of which this many have been made. Collective, and so is something else
 * before the first rank asks. Until: sets *until to `next`, the step to which this rank is about to train that has made
 * `step` steps. Where a rank wants to stop *until may be less, and is `step` itself where all ranks are to stop there.
 * Only then does it wait: for what others are to tell between two of their calls, or while they wait themselves. */
gg_status gg_team_halt_begin(gg_team *team, int64_t step);
void gg_team_halt_end(gg_team *team);
gg_status gg_team_halt_until(gg_team *team, int64_t step, int64_t next, bool want, int64_t *until);

/* Runs fn(context, local) for every local rank, each on its own thread where there are several, and returns when all
 * have. They compute in gg_cpu_compute_mode; the calling thread has its own mode back afterwards. */
gg_status gg_team_run(gg_team *team, gg_status (*fn)(void *context, int local), void *context);
/* The same, watched as gg_virtual_run_watched where the ranks are virtual; else `watch` is ignored. */
gg_status gg_team_run_watched(gg_team *team, gg_status (*fn)(void *context, int local), void *context,
                              const gg_watch *watch);
/* What messages between these ranks cost (gg_link_measure), measured when it is first asked for. It advances no virtual
 * clock, its messages are not counted, and its waits have no timeout. Collective, with nothing in flight. */
gg_status gg_team_link(gg_team *team, size_t bytes, gg_link *out);

#endif
