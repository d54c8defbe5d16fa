#include "apoptosis/merge.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

/* Smaller shares of a vector count as rounding. */
#define ROUNDING 1e-6
/* Squared distances below this share of a vector's square are too inexact in float32 products. */
#define INEXACT 1e-3

/* One group while its units are compared. */
typedef struct comparison {
    const gg_graph *graph;
    const gg_units *units;
    const gg_unit_group *group;
    int64_t length;   /* of a vector */
    float *vector;    /* one a unit */
    float *product;   /* of all pairs; the rows as long as there are units */
    int64_t *filled;  /* rows of it that are there, while it is made */
    double *norm;     /* |u|, one a unit */
    double *inverse;  /* 1 / |u|^2; 0 of a unit that is 0 */
    double *alone;    /* cost of leaving without a replacement: |u|, for a head that of its values' rows */
    double *listened; /* the norm of the outgoing weights, times the readers' gains */
    bool *left;
    bool flips;     /* a sigmoid unit may be 1 minus another one */
    bool constants; /* values other than 0 can go into biases */
    /* The best that is known for each unit: */
    int *into;
    float *scale, *value;
    double *distance;
} comparison;

/* A reader's weight as rows x columns x inner elements. */
typedef struct reader_weight {
    float *at, *bias;
    double sign; /* of the term added to the bias */
    int64_t rows, columns, inner;
    const int *unit; /* one a column */
} reader_weight;

static reader_weight weight_of(const gg_graph *graph, const gg_units *units, const gg_unit_reader *reader,
                               float *weights) {
    const gg_parameter *it = gg_graph_parameter(graph, reader->weight);
    reader_weight made = {.at = weights + it->offset,
                          .rows = it->shape.size[0],
                          .columns = it->shape.size[1],
                          .sign = reader->mean ? -1 : 1,
                          .unit = units->parameter[reader->weight][1].unit};
    made.inner = (int64_t)it->count / made.rows / made.columns;
    if (reader->bias >= 0) made.bias = weights + gg_graph_parameter(graph, reader->bias)->offset;
    return made;
}

static int64_t next_column(const reader_weight *weight, int unit, int64_t from) {
    while (from < weight->columns && weight->unit[from] != unit) from++;
    return from;
}

static void fold_column(const reader_weight *weight, int64_t from, int64_t to, const gg_merge *merge) {
    for (int64_t r = 0; r < weight->rows; r++) {
        float *own = weight->at + (r * weight->columns + from) * weight->inner;
        double sum = 0;
        for (int64_t k = 0; k < weight->inner; k++) sum += (double)own[k];
        if (weight->bias != NULL && merge->value != 0)
            weight->bias[r] += (float)(weight->sign * (double)merge->value * sum);
        if (to < weight->columns) {
            float *other = weight->at + (r * weight->columns + to) * weight->inner;
            for (int64_t k = 0; k < weight->inner; k++) other[k] += merge->scale * own[k];
        }
        for (int64_t k = 0; k < weight->inner; k++) own[k] = 0;
    }
}

/* The first column of a unit goes into the first of the other, and so on. */
static void fold_merge(const gg_graph *graph, const gg_units *units, const gg_merge *merge, float *weights) {
    const gg_unit_group *group = &units->group[units->group_of[merge->unit]];
    for (int i = 0; i < group->readers; i++) {
        const reader_weight weight = weight_of(graph, units, &group->reader[i], weights);
        int64_t from = next_column(&weight, merge->unit, 0);
        int64_t to = merge->into >= 0 ? next_column(&weight, merge->into, 0) : weight.columns;
        while (from < weight.columns) {
            fold_column(&weight, from, to, merge);
            from = next_column(&weight, merge->unit, from + 1);
            if (merge->into >= 0) to = next_column(&weight, merge->into, to + 1);
        }
    }
}

void gg_merges_fold(const gg_merges *merges, const gg_graph *graph, const gg_units *units, float *weights) {
    for (int i = 0; i < merges->count; i++) fold_merge(graph, units, &merges->merge[i], weights);
}

void gg_merges_leaves(const gg_merges *merges, const gg_units *units, bool *leaves) {
    memset(leaves, 0, (size_t)units->units * sizeof *leaves);
    for (int i = 0; i < merges->count; i++) leaves[merges->merge[i].unit] = true;
}

gg_status gg_merges_create(const gg_units *units, gg_merges **out) {
    gg_status status = GG_OK;
    gg_merges *made = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "merges", &made));
    made->groups = units->groups;
    GG_TRY_CLEANUP(gg_calloc((size_t)units->units + 1, sizeof *made->merge, "merges", &made->merge));
    GG_TRY_CLEANUP(gg_calloc((size_t)units->groups + 1, sizeof *made->bound, "merges", &made->bound));
    GG_TRY_CLEANUP(gg_calloc((size_t)units->groups + 1, sizeof *made->share, "merges", &made->share));
    *out = made;
    made = NULL;
cleanup:
    gg_merges_destroy(made);
    return status;
}

void gg_merges_destroy(gg_merges *merges) {
    if (merges == NULL) return;
    gg_free(merges->merge);
    gg_free(merges->bound);
    gg_free(merges->share);
    gg_free(merges);
}

/* Vectors ---------------------------------------------------------------------------------------------------------- */

/* NULL: the layer has none. */
static const gg_parameter *parameter_of(const gg_graph *graph, int node, gg_role role, const char *suffix) {
    int first = 0;
    const int count = gg_graph_layer_parameters(graph, gg_graph_node(graph, node)->layer, &first);
    for (int i = first; i < first + count; i++) {
        const gg_parameter *it = gg_graph_parameter(graph, i);
        const size_t length = strlen(it->name), end = suffix != NULL ? strlen(suffix) : 0;
        if (it->role == role && (end == 0 || strcmp(it->name + length - end, suffix) == 0)) return it;
    }
    return NULL;
}

static float element_of(const gg_parameter *parameter, const float *weights, int64_t i, float otherwise) {
    return parameter != NULL ? weights[parameter->offset + (size_t)i] : otherwise;
}

/* The normalisation of a channel: times `scale`, plus `shift`. */
static void fold_norm(const gg_graph *graph, int norm, const float *weights, int64_t channel, double *scale,
                      double *shift) {
    *scale = 1;
    *shift = 0;
    if (norm < 0) return;
    const gg_parameter *mean = parameter_of(graph, norm, GG_ROLE_STATISTIC, ".running_mean");
    const gg_parameter *variance = parameter_of(graph, norm, GG_ROLE_STATISTIC, ".running_var");
    const double epsilon = (double)gg_graph_node(graph, norm)->desc.batch_norm.epsilon;
    const float *w = weights;
    const double spread = (double)element_of(variance, w, channel, 1);
    /* As evaluation does: averages of rounded variances of about 0 may be a hair below it. */
    *scale = (double)element_of(parameter_of(graph, norm, GG_ROLE_SCALE, NULL), w, channel, 1) /
             sqrt((spread < 0 ? 0 : spread) + epsilon);
    *shift = (double)element_of(parameter_of(graph, norm, GG_ROLE_SHIFT, NULL), w, channel, 0) -
             *scale * (double)element_of(mean, w, channel, 0);
}

static bool is_recurrent(const gg_graph *graph, const gg_unit_producer *producer) {
    return gg_graph_node(graph, producer->node)->desc.kind == GG_LAYER_LSTM;
}

/* The parameters of a producer whose rows are those of units, in runs that have their biases in common: those of an
 * LSTM's layers. From number `first` to end - 1. */
typedef struct run {
    int first, end;
    int64_t rows; /* of one unit */
} run;

static run run_of(const comparison *it, const gg_unit_producer *producer, int number) {
    run made = {0};
    const gg_node *node = gg_graph_node(it->graph, producer->node);
    const int runs = is_recurrent(it->graph, producer) ? (int)node->desc.lstm.layers : 1;
    const int each = gg_graph_layer_parameters(it->graph, node->layer, &made.first) / runs;
    const gg_unit_axis *axis = &it->units->parameter[made.first][0];
    if (number >= runs) return (run){0};
    for (int64_t i = 0; i < axis->count; i++) made.rows += axis->unit[i] == it->group->first;
    made.first += number * each;
    made.end = made.first + each;
    return made;
}

/* The columns of a parameter whose rows are units' weights; 0: it is another one. */
static int64_t columns_of(const comparison *it, int parameter) {
    const gg_parameter *own = gg_graph_parameter(it->graph, parameter);
    const gg_unit_axis *axis = &it->units->parameter[parameter][0];
    return own->role == GG_ROLE_WEIGHT && axis->unit != NULL ? (int64_t)own->count / axis->count : 0;
}

/* Each unit's rows of one parameter, one behind the other from place `begin` of its vector on; of biases they are added
 * to what is there. columns: of a row. */
static void fill_rows(comparison *it, const gg_unit_producer *producer, int parameter, int64_t columns,
                      const float *weights, int64_t begin) {
    const gg_parameter *own = gg_graph_parameter(it->graph, parameter);
    const gg_unit_axis *axis = &it->units->parameter[parameter][0];
    memset(it->filled, 0, (size_t)it->group->units * sizeof *it->filled);
    for (int64_t row = 0; row < axis->count; row++) {
        const int unit = axis->unit[row] - it->group->first;
        if (unit < 0 || unit >= it->group->units) continue;
        const float *from = weights + own->offset + row * columns;
        float *to = it->vector + unit * it->length + begin + it->filled[unit]++ * columns;
        double scale, shift;
        fold_norm(it->graph, producer->norm, weights, row, &scale, &shift);
        for (int64_t k = 0; k < columns; k++) to[k] += (float)(scale * (double)from[k]);
    }
}

/* The normalisation's addition to each unit's sum. */
static void fill_shifts(comparison *it, const gg_unit_producer *producer, const float *weights, int64_t at) {
    const gg_unit_axis *axis = &it->units->output[producer->node];
    for (int64_t row = 0; producer->norm >= 0 && row < axis->count; row++) {
        const int unit = axis->unit[row] - it->group->first;
        double scale, shift;
        if (unit < 0 || unit >= it->group->units) continue;
        fold_norm(it->graph, producer->norm, weights, row, &scale, &shift);
        it->vector[unit * it->length + at] += (float)shift;
    }
}

/* Numbers that each unit has of all producers: of each run the weights' rows, then the sum of the biases of each row.
 */
static int64_t vector_length(const comparison *it) {
    int64_t length = 0;
    for (int p = 0; p < it->group->producers; p++) {
        const gg_unit_producer *producer = &it->group->producer[p];
        for (int number = 0; run_of(it, producer, number).rows > 0; number++) {
            const run own = run_of(it, producer, number);
            for (int k = own.first; k < own.end; k++) length += own.rows * columns_of(it, k);
            length += own.rows;
        }
    }
    return length;
}

static void fill_vectors(comparison *it, const float *weights) {
    int64_t at = 0;
    for (int p = 0; p < it->group->producers; p++) {
        const gg_unit_producer *producer = &it->group->producer[p];
        for (int number = 0; run_of(it, producer, number).rows > 0; number++) {
            const run own = run_of(it, producer, number);
            for (int k = own.first; k < own.end; k++) {
                const int64_t columns = columns_of(it, k);
                if (columns > 0) fill_rows(it, producer, k, columns, weights, at);
                at += own.rows * columns;
            }
            for (int k = own.first; k < own.end; k++)
                if (gg_graph_parameter(it->graph, k)->role == GG_ROLE_BIAS && it->units->parameter[k][0].unit != NULL)
                    fill_rows(it, producer, k, 1, weights, at);
            fill_shifts(it, producer, weights, at);
            at += own.rows;
        }
    }
}

/* Of a head: the last third of its rows, and of their biases. */
static double value_norm(const comparison *it, int i) {
    const float *own = it->vector + i * it->length;
    const int64_t rows = run_of(it, &it->group->producer[0], 0).rows;
    if (rows == 0) return 0;
    const int64_t columns = it->length / rows - 1;
    double sum = 0;
    for (int64_t k = rows / 3 * 2 * columns; k < it->length; k++)
        if (k < rows * columns || k >= rows * columns + rows / 3 * 2) sum += (double)own[k] * (double)own[k];
    return sqrt(sum);
}

static double dot(const comparison *it, int i, int j) {
    const float *a = it->vector + i * it->length, *b = it->vector + j * it->length;
    double sum = 0;
    for (int64_t k = 0; k < it->length; k++) sum += (double)a[k] * (double)b[k];
    return sum;
}

/* Outgoing weights: their norm over all readers. */
static double listening_of(const comparison *it, int unit, float *weights) {
    double sum = 0;
    for (int i = 0; i < it->group->readers; i++) {
        const gg_unit_reader *reader = &it->group->reader[i];
        const reader_weight weight = weight_of(it->graph, it->units, reader, weights);
        double own = 0;
        for (int64_t c = next_column(&weight, it->group->first + unit, 0); c < weight.columns;
             c = next_column(&weight, it->group->first + unit, c + 1))
            for (int64_t r = 0; r < weight.rows; r++) {
                const float *at = weight.at + (r * weight.columns + c) * weight.inner;
                for (int64_t k = 0; k < weight.inner; k++) own += (double)at[k] * (double)at[k];
            }
        sum += reader->gain * reader->gain * own;
    }
    return sqrt(sum);
}

/* to[c][r] = from[r][c], in tiles that lie in the first cache. */
static void transpose(int64_t rows, int64_t columns, const float *from, int64_t from_row, float *to, int64_t to_row) {
    enum { TILE = 32 };
    for (int64_t r = 0; r < rows; r += TILE)
        for (int64_t c = 0; c < columns; c += TILE)
            for (int64_t i = r; i < rows && i < r + TILE; i++)
                for (int64_t k = c; k < columns && k < c + TILE; k++) to[k * to_row + i] = from[i * from_row + k];
}

static void copy_rows(int64_t rows, int64_t columns, const float *from, int64_t from_row, float *to, int64_t to_row) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * to_row, from + i * from_row, (size_t)columns * sizeof *to);
}

/* A linear layer whose weight are the vectors from unit `begin` on, and whose inputs are the `rows` first of them. */
static gg_status open_products(gg_device *device, int64_t rows, int64_t outputs, int64_t length, gg_op **op) {
    gg_op_desc desc = {.kind = GG_OP_LINEAR, .batch = rows, .inputs = 1};
    desc.input[0] = (gg_shape){1, {length}};
    desc.output = (gg_shape){1, {outputs}};
    if (device->table->create[GG_OP_LINEAR] == NULL)
        return gg_fail(GG_ERROR_UNSUPPORTED, "apoptosis: the table '%s' has no linear layers", device->table->name);
    GG_TRY(device->table->create[GG_OP_LINEAR](device, &desc, op));
    const gg_layout from = (*op)->input[0].layout, to = (*op)->output.layout;
    if ((from != GG_LAYOUT_PLAIN && from != GG_LAYOUT_BATCH_LAST) ||
        (to != GG_LAYOUT_PLAIN && to != GG_LAYOUT_BATCH_LAST))
        return gg_fail(GG_ERROR_UNSUPPORTED, "apoptosis: the table '%s' has linear layers in a layout of its own",
                       device->table->name);
    return GG_OK;
}

/* Memory for the operands of a block of products: the host's, and the device's where that is another one. */
typedef struct product_memory {
    float *in, *out, *device_in, *device_out;
    void *prepared, *saved, *scratch;
} product_memory;

static void free_products(gg_device *device, product_memory *own) {
    if (own->device_in != own->in) gg_device_free(device, own->device_in);
    if (own->device_out != own->out) gg_device_free(device, own->device_out);
    gg_device_free(device, own->prepared);
    gg_device_free(device, own->saved);
    gg_device_free(device, own->scratch);
    gg_free(own->in);
    gg_free(own->out);
}

/* Memory that the device can read and write: `host` itself, or `bytes` of its own. */
static gg_status operand_of(gg_device *device, float *host, size_t bytes, float **out) {
    if (gg_device_is_separate(device)) return gg_device_alloc(device, bytes, "products of units", out);
    *out = host;
    return GG_OK;
}

static gg_status write_operand(gg_device *device, float *to, const float *host, size_t bytes) {
    return to == host ? GG_OK : gg_device_write(device, to, host, bytes);
}

static gg_status read_operand(gg_device *device, float *host, const float *from, size_t bytes) {
    return from == host ? GG_OK : gg_device_read(device, host, from, bytes);
}

/* The products of units [begin, begin + rows) with all from `begin` on, and by symmetry the other way. all: the vectors
 * of all units, as the device reads them. */
static gg_status multiply_block(comparison *it, gg_device *device, const float *all, int64_t begin, int64_t rows) {
    gg_status status = GG_OK;
    const int64_t n = it->group->units, outputs = n - begin, length = it->length, lanes = gg_lanes_padded(rows);
    const size_t in_bytes = ((size_t)(lanes * length) + GG_READ_BEHIND) * sizeof(float);
    const size_t out_bytes = (size_t)(lanes * outputs) * sizeof(float);
    float *vectors = it->vector + begin * length, *product = it->product + begin * n + begin;
    product_memory own = {0};
    gg_op *op = NULL;
    GG_TRY_CLEANUP(open_products(device, rows, outputs, length, &op));
    if (op == NULL) goto cleanup; /* never: for the analysers, which cannot see that it has failed then */
    GG_TRY_CLEANUP(gg_calloc(in_bytes, 1, "vectors of units", &own.in));
    GG_TRY_CLEANUP(gg_calloc(out_bytes, 1, "products of units", &own.out));
    GG_TRY_CLEANUP(operand_of(device, own.in, in_bytes, &own.device_in));
    GG_TRY_CLEANUP(operand_of(device, own.out, out_bytes, &own.device_out));
    GG_TRY_CLEANUP(gg_device_alloc(device, op->prepared_bytes, "products of units", &own.prepared));
    GG_TRY_CLEANUP(gg_device_alloc(device, op->saved_bytes, "products of units", &own.saved));
    GG_TRY_CLEANUP(gg_device_alloc(device, op->scratch_bytes, "products of units", &own.scratch));
    if (op->input[0].layout == GG_LAYOUT_PLAIN) copy_rows(rows, length, vectors, length, own.in, length);
    else transpose(rows, length, vectors, length, own.in, lanes);
    GG_TRY_CLEANUP(write_operand(device, own.device_in, own.in, in_bytes));
    const float *parameter[1] = {all + begin * length};
    gg_op_args args = {.input = {own.device_in},
                       .output = own.device_out,
                       .parameter = parameter,
                       .prepared = own.prepared,
                       .saved = own.saved,
                       .scratch = own.scratch};
    GG_TRY_CLEANUP(gg_op_prepare(op, &args, GG_PASS_FORWARD));
    GG_TRY_CLEANUP(op->type->forward(op, &args));
    GG_TRY_CLEANUP(read_operand(device, own.out, own.device_out, out_bytes));
    if (op->output.layout == GG_LAYOUT_PLAIN) {
        copy_rows(rows, outputs, own.out, outputs, product, n);
        transpose(rows, outputs, own.out, outputs, product, n);
    } else {
        transpose(outputs, rows, own.out, lanes, product, n);
        copy_rows(outputs, rows, own.out, lanes, product, n);
    }
cleanup:
    free_products(device, &own);
    gg_op_destroy(op);
    return status;
}

/* The products of all pairs, in blocks, so that the memory for operands is a part of that of the vectors. */
static gg_status multiply_pairs(comparison *it, gg_device *device) {
    enum { BLOCK = 256 }; /* units: whole lanes, so that every block's vectors are aligned */
    gg_status status = GG_OK;
    const int64_t n = it->group->units;
    const size_t bytes = (size_t)(n * it->length) * sizeof(float);
    float *all = NULL;
    GG_TRY_CLEANUP(operand_of(device, it->vector, bytes + GG_READ_BEHIND, &all));
    GG_TRY_CLEANUP(write_operand(device, all, it->vector, bytes));
    for (int64_t begin = 0; begin < n; begin += BLOCK)
        GG_TRY_CLEANUP(multiply_block(it, device, all, begin, n - begin < BLOCK ? n - begin : BLOCK));
cleanup:
    if (all != it->vector) gg_device_free(device, all);
    return status;
}

/* Choices ---------------------------------------------------------------------------------------------------------- */

static double allowed_scale(const comparison *it, double product, double square) {
    switch (it->group->rule) {
    case GG_UNIT_LINEAR: return square > 0 ? product / square : 0;
    case GG_UNIT_POSITIVE: return square > 0 && product > 0 ? product / square : 0;
    case GG_UNIT_ODD: return product < 0 ? -1 : 1;
    case GG_UNIT_SIGMOID: return product < 0 && it->flips ? -1 : 1;
    default: return 1;
    }
}

/* |u_i - c u_j|, element by element. */
static double exact_distance(const comparison *it, int i, int j, double c) {
    const float *a = it->vector + i * it->length, *b = it->vector + j * it->length;
    double sum = 0;
    for (int64_t k = 0; k < it->length; k++) {
        const double d = (double)a[k] - c * (double)b[k];
        sum += d * d;
    }
    return sqrt(sum);
}

static void offer(comparison *it, int i, double distance, int into, double scale, double value) {
    if (!(distance < it->distance[i]) || !isfinite((float)scale)) return;
    it->distance[i] = distance;
    it->into[i] = into;
    it->scale[i] = (float)scale;
    it->value[i] = (float)value;
}

/* Output of a unit whose sum is `sum` everywhere. */
static double activation_of(const gg_unit_group *group, double sum) {
    switch (group->activation) {
    case GG_LAYER_RELU: return sum > 0 ? sum : 0;
    case GG_LAYER_LEAKY_RELU: return sum > 0 ? sum : (double)group->slope * sum;
    case GG_LAYER_TANH: return tanh(sum);
    case GG_LAYER_SIGMOID: return 1 / (1 + exp(-sum));
    default: return sum;
    }
}

static void offer_constant(comparison *it, int i) {
    const gg_unit_group *group = it->group;
    if (it->listened[i] == 0) offer(it, i, 0, -1, 0, 0);
    /* A hidden unit that nothing reaches stays zero, and a head without values is zero. */
    if (group->rule <= GG_UNIT_ODD || group->heads || is_recurrent(it->graph, &group->producer[0]))
        offer(it, i, it->alone[i], -1, 0, 0);
    if (group->producers > 1 || group->activation == GG_LAYER_COUNT) return;
    const float *own = it->vector + i * it->length;
    const double value = activation_of(group, (double)own[it->length - 1]);
    double sum = 0;
    for (int64_t k = 0; k < it->length - 1; k++) sum += (double)own[k] * (double)own[k];
    if (value == 0 || it->constants) offer(it, i, sqrt(sum), -1, 0, value);
}

static void choose_partner(comparison *it, int i) {
    const int64_t n = it->group->units;
    const double square = it->norm[i] * it->norm[i];
    it->distance[i] = INFINITY;
    offer_constant(it, i);
    for (int j = 0; j < n; j++) {
        if (j == i || it->left[j]) continue;
        const double other = it->norm[j] * it->norm[j];
        double product = (double)it->product[i * n + j];
        /* No scale brings it nearer than its projection: most pairs end here, without a division. */
        const double nearest = square - product * product * it->inverse[j];
        if (nearest - INEXACT * (2 * square + other) >= it->distance[i] * it->distance[i]) continue;
        double c = allowed_scale(it, product, other);
        const double squared = square - 2 * c * product + c * c * other;
        const bool inexact = squared < INEXACT * (square + c * c * other);
        if (!inexact && squared >= it->distance[i] * it->distance[i]) continue;
        double distance = sqrt(fmax(0, squared));
        if (inexact) {
            product = dot(it, i, j);
            c = (double)(float)allowed_scale(it, product, other);
            distance = exact_distance(it, i, j, c);
        }
        if (it->group->heads && distance > ROUNDING * it->norm[i]) continue; /* scores are products of weights */
        offer(it, i, distance, j, c, it->group->rule == GG_UNIT_SIGMOID && c < 0 ? 1 : 0);
    }
}

static bool is_rounding(const comparison *it, int i) { return it->distance[i] <= ROUNDING * it->norm[i]; }

/* The unit that costs least; -1: none within the rest of the budget. */
static int cheapest_unit(const comparison *it, double budget) {
    int best = -1;
    double least = INFINITY;
    for (int i = 0; i < it->group->units; i++) {
        if (it->left[i]) continue;
        const bool nothing = is_rounding(it, i) || it->listened[i] == 0;
        const double cost = it->listened[i] * it->distance[i];
        if ((nothing || cost <= budget) && cost < least) {
            least = cost;
            best = i;
        }
    }
    return best;
}

/* For all units at once, in the order of readers' weights in memory. */
static void listen_to_all(comparison *it, float *weights) {
    const int n = it->group->units;
    for (int i = 0; i < n; i++) it->listened[i] = 0;
    for (int i = 0; i < it->group->readers; i++) {
        const gg_unit_reader *reader = &it->group->reader[i];
        const reader_weight weight = weight_of(it->graph, it->units, reader, weights);
        const double gain = reader->gain * reader->gain;
        for (int64_t r = 0; r < weight.rows; r++)
            for (int64_t c = 0; c < weight.columns; c++) {
                const int unit = weight.unit[c] - it->group->first;
                const float *at = weight.at + (r * weight.columns + c) * weight.inner;
                if (unit < 0 || unit >= n) continue;
                for (int64_t k = 0; k < weight.inner; k++) it->listened[unit] += gain * (double)at[k] * (double)at[k];
            }
    }
    for (int i = 0; i < n; i++) it->listened[i] = sqrt(it->listened[i]);
}

static double budget_of(const gg_merge_options *options, int group) {
    return options->budgets != NULL ? options->budgets[group] : options->budget;
}

static int least_of(const gg_merge_options *options, int group) {
    return options->leasts != NULL ? options->leasts[group] : options->least;
}

static gg_status choose_units(comparison *it, const gg_merge_options *options, float *weights, gg_merges *out) {
    const gg_unit_group *group = it->group;
    const int n = group->units, number = it->units->group_of[group->first];
    double mass = 0, budget;
    listen_to_all(it, weights);
    for (int i = 0; i < n; i++) {
        it->norm[i] = sqrt(dot(it, i, i));
        it->inverse[i] = it->norm[i] > 0 ? 1 / (it->norm[i] * it->norm[i]) : 0;
        it->alone[i] = group->heads ? value_norm(it, i) : it->norm[i];
        mass += it->alone[i] * it->listened[i];
        if (!isfinite(it->norm[i]) || !isfinite(it->listened[i]))
            return gg_fail(GG_ERROR_NUMERIC, "apoptosis: weights of or behind unit %d of layer '%s' are not finite", i,
                           gg_graph_node(it->graph, group->producer[0].node)->desc.name);
    }
    GG_TRY(multiply_pairs(it, options->device));
    for (int i = 0; i < n; i++) choose_partner(it, i);
    const double share = budget_of(options, number);
    budget = share == 0 ? -1 : share * mass;
    for (int stay = n; stay > least_of(options, number); stay--) {
        const int i = cheapest_unit(it, budget);
        if (i < 0) break;
        const int into = it->into[i] >= 0 ? group->first + it->into[i] : -1;
        if (into >= 0) {
            const double exact = exact_distance(it, i, it->into[i], (double)it->scale[i]);
            const bool dearer = exact > it->distance[i];
            it->distance[i] = exact;
            if (dearer && cheapest_unit(it, budget) != i) { /* perhaps no longer the cheapest, or within the budget */
                stay++;
                continue;
            }
        }
        const gg_merge made = {group->first + i, into, it->scale[i], it->value[i], it->listened[i] * it->distance[i]};
        out->merge[out->count++] = made;
        out->bound[number] += made.bound;
        budget -= made.bound;
        fold_merge(it->graph, it->units, &made, weights);
        it->left[i] = true;
        if (into >= 0) it->listened[it->into[i]] = listening_of(it, it->into[i], weights);
        for (int k = 0; k < n; k++)
            if (!it->left[k] && (it->into[k] == i || (into >= 0 && k == it->into[i]))) choose_partner(it, k);
    }
    out->share[number] = mass > 0 ? out->bound[number] / mass : 0;
    return GG_OK;
}

static gg_status compare_group(const gg_graph *graph, const gg_units *units, const gg_unit_group *group,
                               const gg_merge_options *options, float *weights, gg_merges *out) {
    gg_status status = GG_OK;
    comparison it = {.graph = graph, .units = units, .group = group, .flips = true, .constants = true};
    const size_t n = (size_t)group->units;
    it.length = vector_length(&it);
    for (int i = 0; i < group->readers; i++)
        it.constants = it.constants && group->reader[i].constants && group->reader[i].bias >= 0;
    it.flips = it.constants;
    GG_TRY_CLEANUP(
        gg_calloc(n * (size_t)it.length + GG_READ_BEHIND, sizeof *it.vector, "vectors of units", &it.vector));
    GG_TRY_CLEANUP(gg_calloc(n * n, sizeof *it.product, "products of units", &it.product));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.filled, "units", &it.filled));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.norm, "units", &it.norm));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.inverse, "units", &it.inverse));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.alone, "units", &it.alone));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.listened, "units", &it.listened));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.left, "units", &it.left));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.into, "units", &it.into));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.scale, "units", &it.scale));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.value, "units", &it.value));
    GG_TRY_CLEANUP(gg_calloc(n, sizeof *it.distance, "units", &it.distance));
    fill_vectors(&it, weights);
    GG_TRY_CLEANUP(choose_units(&it, options, weights, out));
cleanup:
    gg_free(it.vector);
    gg_free(it.product);
    gg_free(it.filled);
    gg_free(it.norm);
    gg_free(it.inverse);
    gg_free(it.alone);
    gg_free(it.listened);
    gg_free(it.left);
    gg_free(it.into);
    gg_free(it.scale);
    gg_free(it.value);
    gg_free(it.distance);
    return status;
}

gg_status gg_merges_find(const gg_graph *graph, const gg_units *units, const float *weights,
                         const gg_merge_options *options, gg_merges **out) {
    gg_status status = GG_OK;
    const size_t bytes = gg_graph_arena_count(graph) * sizeof(float);
    gg_merges *made = NULL;
    float *own = NULL;
    *out = NULL;
    for (int g = 0; g < units->groups; g++)
        if (!(budget_of(options, g) >= 0 && budget_of(options, g) <= 1))
            GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "budget: %g; must be 0 to 1", budget_of(options, g));
    for (int g = 0; g < units->groups; g++)
        if (least_of(options, g) < 1)
            GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "least: %d; must be at least 1", least_of(options, g));
    GG_TRY_CLEANUP(gg_merges_create(units, &made));
    GG_TRY_CLEANUP(gg_alloc(bytes, "weights", &own));
    if (bytes > 0) memcpy(own, weights, bytes);
    for (int g = 0; g < units->groups; g++) {
        const gg_unit_group *group = &units->group[g];
        if (group->fixed[0] != '\0' || group->single[0] != '\0' || group->readers == 0) continue;
        if ((options->groups != NULL && !options->groups[g]) || group->units <= least_of(options, g)) continue;
        GG_TRY_CLEANUP(compare_group(graph, units, group, options, own, made));
    }
    *out = made;
    made = NULL;
cleanup:
    gg_free(own);
    gg_merges_destroy(made);
    return status;
}
