/* NoExchange: every rank trains alone. The baseline of the others. */
#include "exchange/strategies/no_exchange.h"
#include "base/memory.h"
#include "exchange/types.h"

static void no_exchange_destroy(gg_strategy *strategy) {
    gg_state_destroy(&strategy->env);
    gg_free(strategy);
}

static const gg_strategy_table table = {gg_strategy_nothing,  gg_strategy_no_layer, gg_strategy_update_layer,
                                        gg_strategy_progress, gg_strategy_nothing,  gg_strategy_nothing,
                                        no_exchange_destroy};

gg_status gg_no_exchange_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gg_strategy *made = NULL;
    (void)options;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "strategy", &made));
    made->table = &table;
    made->only_applies_gradients = true;
    made->env = *env;
    GG_TRY_CLEANUP(gg_state_create(env, 0));
cleanup:
    if (status != GG_OK && made != NULL) no_exchange_destroy(made), made = NULL;
    *out = made;
    return status;
}

static const gg_option options[] = {{.name = NULL}};

const gg_strategy_type gg_strategy_no_exchange = {.name = "no-exchange",
                                                  .options = options,
                                                  .create = gg_no_exchange_create,
                                                  .needs_all = gg_strategy_needs_none,
                                                  .in_loops = true};
