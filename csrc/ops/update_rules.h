/* The rules of optimisers' updates, once for CPUs and GPUs: how a weight and its moments follow from a gradient. What
 * gossip adds is in gg_update_args (backend.h), which has the factors.
 *
 * A kernel's file includes this header again, after it has defined
 *   GG_RULE_VALUE      a number or a vector of them, with + - * /
 *   GG_RULE_FACTOR     a factor of a value
 *   GG_RULE_INLINE     qualifiers of a function
 *   GG_RULE_NUMBER(x)  a factor from a float
 *   GG_RULE_SPLAT(x)   a value from a float
 *   rule_root(v)       square root
 *   rule_if_less(a, b, yes, no)  yes where a < b, else no: where a or b is NaN as well */
#ifndef GG_OPS_UPDATE_RULES_H
#define GG_OPS_UPDATE_RULES_H

#define GG_UPDATE_RULES(X)                                                                                             \
    X(PLAIN) /* SGD without momentum */                                                                                \
    X(MOMENTUM)                                                                                                        \
    X(NESTEROV)                                                                                                        \
    X(ADAM)                                                                                                            \
    X(ADAM_MEAN) /* ADAM whose second moment is that of a mean over ranks */                                           \
    X(LION)

typedef enum gg_update_rule {
#define GG_UPDATE_RULE(name) GG_UPDATE_##name,
    GG_UPDATE_RULES(GG_UPDATE_RULE)
#undef GG_UPDATE_RULE
        GG_UPDATE_RULE_COUNT
} gg_update_rule;

/* Moments that a rule reads and writes: none, `momentum`, or `momentum` and `square`. */
#define GG_UPDATE_MOMENTS(rule)                                                                                        \
    ((rule) == GG_UPDATE_PLAIN ? 0 : (rule) == GG_UPDATE_ADAM || (rule) == GG_UPDATE_ADAM_MEAN ? 2 : 1)

#endif

#ifdef GG_RULE_VALUE
typedef struct update_factors {
    GG_RULE_FACTOR grad_scale, lr, mu, weight_decay, d_share, beta2, square_share, mean_share, root_scale, eps,
        weight_factor;
} update_factors;

typedef struct updated {
    GG_RULE_VALUE weight, momentum, square;
} updated;

GG_RULE_INLINE update_factors update_factors_of(const gg_update_args *args) {
    update_factors f;
    f.grad_scale = GG_RULE_NUMBER(args->grad_scale);
    f.lr = GG_RULE_NUMBER(args->lr);
    f.mu = GG_RULE_NUMBER(args->mu);
    f.weight_decay = GG_RULE_NUMBER(args->weight_decay);
    f.d_share = GG_RULE_NUMBER(args->d_share);
    f.beta2 = GG_RULE_NUMBER(args->beta2);
    f.square_share = GG_RULE_NUMBER(args->square_share);
    f.mean_share = GG_RULE_NUMBER(args->mean_share);
    f.root_scale = GG_RULE_NUMBER(args->root_scale);
    f.eps = GG_RULE_NUMBER(args->eps);
    f.weight_factor = GG_RULE_NUMBER(args->weight_factor);
    return f;
}

/* 1, -1, or v where it is 0 or NaN. */
GG_RULE_INLINE GG_RULE_VALUE sign_of(GG_RULE_VALUE v) {
    const GG_RULE_VALUE zero = GG_RULE_SPLAT(0.0f), one = GG_RULE_SPLAT(1.0f);
    return rule_if_less(zero, v, one, rule_if_less(v, zero, zero - one, v));
}

/* An element after its update; `now` has the moments that the rule reads. */
GG_RULE_INLINE updated update_by_rule(gg_update_rule rule, const update_factors *f, GG_RULE_VALUE grad, updated now) {
    const GG_RULE_VALUE w = now.weight, d = f->grad_scale * grad + f->weight_decay * w;
    if (rule == GG_UPDATE_PLAIN) {
        now.weight = w - f->lr * d;
    } else if (rule == GG_UPDATE_ADAM || rule == GG_UPDATE_ADAM_MEAN) {
        const GG_RULE_VALUE zero = GG_RULE_SPLAT(0.0f);
        GG_RULE_VALUE sum = f->beta2 * now.square + f->square_share * (d * d);
        now.momentum = f->mu * now.momentum + f->d_share * d;
        if (rule == GG_UPDATE_ADAM_MEAN) sum = sum + f->mean_share * (now.momentum * now.momentum);
        /* An average of rounded numbers may have brought the square below 0. */
        now.square = rule_if_less(sum, zero, zero, sum);
        now.weight = f->weight_factor * w - f->lr * now.momentum / (rule_root(now.square) * f->root_scale + f->eps);
    } else if (rule == GG_UPDATE_LION) {
        const GG_RULE_VALUE mixed = f->mu * now.momentum + f->d_share * d;
        now.weight = f->weight_factor * w - f->lr * sign_of(mixed);
        now.momentum = f->beta2 * now.momentum + f->square_share * d;
    } else {
        now.momentum = f->mu * now.momentum + d;
        now.weight = w - f->lr * (rule == GG_UPDATE_NESTEROV ? d + f->mu * now.momentum : now.momentum);
    }
    return now;
}
#endif
