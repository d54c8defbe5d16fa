/* Private to the room: the strategy without exchange, also used by others if there are no partners. */
#ifndef GG_EXCHANGE_STRATEGIES_NO_EXCHANGE_H
#define GG_EXCHANGE_STRATEGIES_NO_EXCHANGE_H

#include "exchange/strategy.h"

gg_status gg_no_exchange_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);

#endif
