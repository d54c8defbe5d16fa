/* A virtual cluster with what the functions of its ranks leave for their test. */
#ifndef GG_TESTS_VIRTUAL_SETUP_H
#define GG_TESTS_VIRTUAL_SETUP_H

#include <stdlib.h>

#include "comm/virtual/virtual.h"
#include "comm_check.h"

#define MAX 16

typedef struct setup {
    gg_virtual *cluster;
    int number;
    uint64_t hash[MAX];
    int64_t direct[MAX];
    double clock[MAX], seen[MAX];
    int order[4 * MAX], ordered;
} setup;

static inline gg_virtual *make(int size, double latency, double bandwidth) {
    gg_virtual *cluster = NULL;
    gg_virtual_options options = {.size = size, .network = {latency, bandwidth}, .compute_rate = 1};
    CHECK(gg_virtual_create(&options, &cluster) == GG_OK);
    if (!cluster) {
        fprintf(stderr, "%s\n", gg_error_message());
        exit(1);
    }
    return cluster;
}

static inline gg_transport *at(setup *s, int rank) { return gg_virtual_transport(s->cluster, rank); }

#endif
