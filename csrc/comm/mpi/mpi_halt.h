/* How all ranks come to stop after the same step when one of them wants to, without a message before.
 *
 * A rank that wants to stop tells all others the step that it is training to, its limit; a rank that hears of it first
 * from another does the same. Each stops at the greatest of all limits, and does not go beyond its own before it knows
 * them all.
 *
 * That nobody waits for ever: a rank at its limit waits for limits alone, and every other rank either computes, and so
 * comes to the end of what it trains or to a wait, or waits, and in both places it hears and tells its limit. So all
 * limits arrive, whatever the ranks at theirs withhold meanwhile, and each rank then trains on to the greatest one and
 * gives the others what they wait for. Nobody is beyond that step, as it is at least each rank's own limit. */
#ifndef GG_COMM_MPI_MPI_HALT_H
#define GG_COMM_MPI_MPI_HALT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct gg_mpi_halt gg_mpi_halt;

/* A wait listens every so many rounds. */
#define GG_MPI_LISTEN_ROUNDS 64

/* Made by gg_mpi_halt_create, of mpi_private.h. Collective; touch_mpi false: after a failure, leaves the communicator
 * alone. NULL is fine. */
void gg_mpi_halt_destroy(gg_mpi_halt *halt, bool touch_mpi);

/* The number of the round of steps that has begun last; 0: none has. */
int64_t gg_mpi_halt_round(const gg_mpi_halt *halt);
/* *idle: has MPI read what an earlier round has told? Listens. Collective; to be asked again until it is so. */
gg_status gg_mpi_halt_idle(gg_mpi_halt *halt, bool *idle);
/* A round of steps begins, before which `step` have been made; nothing of an earlier one is left to be read. All ranks
 * give the same number, above all earlier ones, and meet once more before the first looks. What is told in another
 * round is dropped when it arrives. */
void gg_mpi_halt_begin(gg_mpi_halt *halt, int64_t round, int64_t step);
void gg_mpi_halt_end(gg_mpi_halt *halt);

/* This rank is about to train to step `next`, which is its limit unless it has told one. want: it wants to stop. */
gg_status gg_mpi_halt_look(gg_mpi_halt *halt, int64_t next, bool want);
/* Hears other ranks, and tells them this rank's limit once it has heard of one. Never waits: to be called repeatedly in
 * every wait for other ranks. NULL is fine. */
gg_status gg_mpi_halt_listen(gg_mpi_halt *halt);
/* Is a rank that has made `step` steps to wait for the limits of others? */
bool gg_mpi_halt_waits(const gg_mpi_halt *halt, int64_t step);
/* Up to which step it may train that wants to train to `next`: at most to its limit, or, where all limits are known, to
 * the greatest, after which all stop. */
int64_t gg_mpi_halt_until(const gg_mpi_halt *halt, int64_t next);

#endif
