/* ParameterServer: Downpour. A worker trains alone. After each step t with (t + 1) % period == 0, and when it settles,
 * it sends the servers the change of its weights since the last answer, d = w - base. The centre adds it, c += d, and
 * the worker continues with the centre's weights, w = c. The local step is the optimiser's; its momentum is not
 * exchanged.
 *
 * With an inexact codec d is rounded, and so is the answer, c - (base + d). The rounding errors of both stay in w -
 * base and are part of the next message. So c is always its first value plus all sent changes, and w - base is the
 * unsent change. */
#include "exchange/parts/centre.h"
#include "exchange/strategies/no_exchange.h"
#include "exchange/types.h"

static void parameter_server_ask(gg_centre *s, size_t at, size_t n, float *message) {
    gg_add_scaled(s->head.env.device, n, gg_state_weights(s->head.env.state) + at, -1.0f, s->base + at, message);
}

static void parameter_server_answer(gg_centre *s, size_t n, float *weight, const float *message, float *answer) {
    gg_add_scaled(s->head.env.device, n, weight, 1.0f, message, weight);
    gg_device_copy(s->head.env.device, GG_QUEUE_COMPUTE, answer, weight, n * sizeof(float));
}

static void parameter_server_apply(gg_centre *s, size_t at, size_t n, const float *answer) {
    gg_device *device = s->head.env.device;
    gg_device_copy(device, GG_QUEUE_COMPUTE, gg_state_weights(s->head.env.state) + at, answer, n * sizeof(float));
    gg_device_copy(device, GG_QUEUE_COMPUTE, s->base + at, answer, n * sizeof(float));
}

static gg_status parameter_server_answer_difference(gg_centre *s, gg_centre_run *run, float *weight, float *known) {
    GG_TRY(gg_centre_read(s, run, run->message, run->message_bytes, 1.0f, weight));
    GG_TRY(gg_centre_read(s, run, run->message, run->message_bytes, 1.0f, known));
    return gg_centre_tell(s, run, 1.0f, weight, known);
}

static const gg_centre_rule rule = {.table = GG_CENTRE_TABLE,
                                    .accumulates = true,
                                    .ask = parameter_server_ask,
                                    .answer = parameter_server_answer,
                                    .apply = parameter_server_apply,
                                    .answer_difference = parameter_server_answer_difference};

/* With one rank no other rank changes the centre. */
static gg_status parameter_server_create(const gg_strategy_options *options, const gg_strategy_env *env,
                                         gg_strategy **out) {
    return env->transport->size == 1 ? gg_no_exchange_create(options, env, out)
                                     : gg_centre_create(&rule, 0, options, env, out);
}

static const gg_option options[] = {
    GG_OPTION_PERIOD(centre.period, 1, "steps from one exchange with the centre to the next"),
    GG_OPTION_SERVERS,
    GG_OPTION_WIRE,
    GG_OPTION_BUCKET("1 MiB"),
    GG_OPTION_CHUNK("2 MiB"),
    {.name = NULL}};

const gg_strategy_type gg_strategy_parameter_server = {.name = "parameter-server",
                                                       .options = options,
                                                       .check = gg_centre_check,
                                                       .create = parameter_server_create,
                                                       .workers = gg_centre_workers};
