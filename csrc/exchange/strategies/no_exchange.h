/* Private to the room: a strategy that exchanges nothing, which others are where there is nobody to exchange with. */
#ifndef GG_EXCHANGE_STRATEGIES_NO_EXCHANGE_H
#define GG_EXCHANGE_STRATEGIES_NO_EXCHANGE_H

#include "exchange/strategy.h"

gg_status gg_no_exchange_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);

#endif
