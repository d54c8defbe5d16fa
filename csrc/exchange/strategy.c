#include "exchange/strategy.h"

#include <stdio.h>

#include "exchange/types.h"

#define ENTRY(kind, row) &gg_strategy_##row,
static const gg_strategy_type *const types[GG_STRATEGY_COUNT] = {GG_STRATEGIES(ENTRY)};
#undef ENTRY

const gg_option gg_strategy_common[] = {GG_STRATEGY_FLAG("shuffle_samples", shuffle_samples,
                                                         "move the samples from rank to rank while they are trained on",
                                                         false),
                                        {.name = NULL}};

gg_strategy_options gg_strategy_options_of(gg_strategy_kind kind) {
    gg_strategy_options made = {.kind = kind};
    gg_options_reset(gg_strategy_common, &made);
    gg_options_reset(types[kind]->options, &made);
    return made;
}

const gg_strategy_type *gg_strategy_type_of(gg_strategy_kind kind) { return types[kind]; }

const char *gg_strategy_name(gg_strategy_kind kind) { return types[kind]->name; }

/* Refuses compression that the strategy would silently ignore. */
static gg_status check_compressed(const gg_strategy_options *options, const gg_strategy *made) {
    if (gg_residue_wanted(options, &made->env) != 0 && made->compression_counts == NULL)
        return gg_fail(GG_ERROR_ARGUMENT, "compression: the strategy %s does not compress what it sends",
                       gg_strategy_name(options->kind));
    return GG_OK;
}

/* The names of the strategies with local_momentum, with commas. */
static const char *local_momentum_names(char *text, size_t room) {
    size_t end = 0;
    *text = '\0';
    for (int i = 0; i < GG_STRATEGY_COUNT && end < room; ++i)
        if (types[i]->local_momentum)
            end += (size_t)snprintf(text + end, room - end, "%s%s", end > 0 ? ", " : "", types[i]->name);
    return text;
}

gg_status gg_strategy_check(const gg_strategy_options *options, int ranks) {
    if ((int)options->kind < 0 || options->kind >= GG_STRATEGY_COUNT)
        return gg_fail(GG_ERROR_ARGUMENT, "strategy: number %d is none of the %d known", (int)options->kind,
                       GG_STRATEGY_COUNT);
    GG_TRY(gg_options_check(types[options->kind]->options, options));
    GG_TRY(gg_compression_check(&options->compression));
    char names[256];
    if (options->compression.local_momentum && !types[options->kind]->local_momentum)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "local_momentum=True with the strategy %s: allowed with %s, which send gradients",
                       types[options->kind]->name, local_momentum_names(names, sizeof names));
    if (types[options->kind]->check != NULL) GG_TRY(types[options->kind]->check(options, ranks));
    return GG_OK;
}

static bool can_lose_ranks(const gg_strategy_type *type) { return type->needs_all != NULL; }
static bool goes_on_in_loops(const gg_strategy_type *type) { return type->in_loops; }

/* The names of the strategies that can, with commas. */
static const char *names_of(bool (*can)(const gg_strategy_type *type), char *text, size_t room) {
    size_t end = 0;
    *text = '\0';
    for (int i = 0; i < GG_STRATEGY_COUNT && end < room; ++i)
        if (can(types[i])) end += (size_t)snprintf(text + end, room - end, "%s%s", end > 0 ? ", " : "", types[i]->name);
    return text;
}

gg_status gg_strategy_check_survival(const gg_strategy_options *options, bool in_loops) {
    const gg_strategy_type *type = types[options->kind];
    bool (*can)(const gg_strategy_type *) = in_loops ? goes_on_in_loops : can_lose_ranks;
    char names[256];
    if (!can(type))
        return gg_fail(GG_ERROR_ARGUMENT,
                       "ranks that may die: not with the strategy %s, which needs all ranks; allowed: %s", type->name,
                       names_of(can, names, sizeof names));
    const char *option = type->needs_all(options);
    if (option == NULL) return GG_OK;
    return gg_fail(GG_ERROR_ARGUMENT, "ranks that may die: not with %s of the strategy %s", option, type->name);
}

gg_status gg_strategy_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY_CLEANUP(gg_strategy_check(options, env->transport->size));
    GG_TRY_CLEANUP(types[options->kind]->create(options, env, out));
    if ((*out)->table->need == gg_strategy_no_layer) (*out)->current_at_end = true;
    GG_TRY_CLEANUP(check_compressed(options, *out));
cleanup:
    if (status != GG_OK && *out != NULL) {
        gg_strategy_destroy(*out);
        *out = NULL;
    }
    return status;
}

int gg_strategy_keeps_equal(const gg_strategy_options *options, int size, gg_arena_kind arena) {
    const gg_strategy_type *type = types[options->kind];
    if (arena == GG_ARENA_MOMENT && options->compression.local_momentum) return 1;
    if (type->keeps_equal & 1u << arena) return size;
    return type->node_ranks != NULL && GG_EQUAL_REPLICAS & 1u << arena ? type->node_ranks(options) : 1;
}

static bool go_on(const gg_strategy_options *a, const gg_strategy_options *b, bool residues) {
    const gg_strategy_type *type = types[a->kind];
    return a->kind == b->kind && (type->goes_on == NULL || type->goes_on(a, b, residues));
}

bool gg_strategy_mixes_alike(const gg_strategy_options *a, const gg_strategy_options *b) { return go_on(a, b, false); }

bool gg_strategy_sends_alike(const gg_strategy_options *a, const gg_strategy_options *b) { return go_on(a, b, true); }

int gg_strategy_workers(const gg_strategy_options *options, int size) {
    const gg_strategy_type *type = types[options->kind];
    return type->workers != NULL ? type->workers(options, size) : size;
}
