/* The CPU kernels: one set for each instruction-set level, chosen at run time.
 *
 * Kernels are single-threaded and compute the part of the problem given by the caller. They allocate nothing and have
 * no state. Sources are the files *_kernels.c, each compiled once a level. */
#ifndef GG_CPU_KERNELS_H
#define GG_CPU_KERNELS_H

#include "base/random.h"
#include "ops/backend.h"

/* n elements, any layout. Outputs may be the first input's memory. Backward passes start from the output y. */
typedef struct gg_cpu_elementwise {
    void (*relu)(size_t n, const float *x, float *y); /* NaN stays NaN */
    void (*relu_backward)(size_t n, const float *y, const float *dy, float *dx);
    void (*relu_narrow)(size_t n, const uint16_t *x, uint16_t *y); /* for bfloat16 */
    void (*relu_narrow_backward)(size_t n, const uint16_t *y, const uint16_t *dy, uint16_t *dx);
    void (*tanh)(size_t n, const float *x, float *y); /* within 2 ulp */
    void (*tanh_backward)(size_t n, const float *y, const float *dy, float *dx);
    void (*sigmoid)(size_t n, const float *x, float *y); /* within 3 ulp, down to the denormals */
    void (*sigmoid_backward)(size_t n, const float *y, const float *dy, float *dx);
    void (*leaky_relu)(size_t n, float slope, const float *x, float *y); /* slope*x for x < 0 */
    /* `sign` has the signs of x: x itself, or y if the slope is not negative. */
    void (*leaky_relu_backward)(size_t n, float slope, const float *sign, const float *dy, float *dx);
    void (*gelu)(size_t n, const float *x, float *y); /* x times the normal distribution function of x */
    void (*gelu_backward)(size_t n, const float *x, const float *dy, float *dx);
    void (*gelu_tanh)(size_t n, const float *x, float *y); /* PyTorch's approximate="tanh" */
    void (*gelu_tanh_backward)(size_t n, const float *x, const float *dy, float *dx);
    /* Also write the slopes: dx = dy*slope gives the bits of the backward pass. */
    void (*gelu_and_slope)(size_t n, const float *x, float *y, float *slope);
    void (*gelu_tanh_and_slope)(size_t n, const float *x, float *y, float *slope);
    void (*multiply)(size_t n, const float *a, const float *b, float *out);
    void (*add)(size_t n, const float *a, const float *b, float *out); /* out may also be b */
    /* out[i] = mask[i] ? scale*x[i] : 0; out may be x. */
    void (*masked_scale)(size_t n, const float *x, const uint8_t *mask, float scale, float *out);
    /* Draws of dropout: rows[w][i*step] = word w of the stream's block first + i*stride >= threshold, i < n. With step
     * 1, rows are arbitrary (NULL means not wanted). With step 4, the rows are consecutive bytes. */
    void (*dropout_mask)(const gg_random_key *key, uint32_t first, uint32_t stride, size_t n, uint32_t threshold,
                         uint8_t *const rows[4], size_t step);
} gg_cpu_elementwise;

/* The windows that hold each position along one axis of the input. Entries of position i are [start[i], start[i+1]): a
 * window's number and the position's place in that window. */
typedef struct gg_pool_cover {
    const int32_t *start, *window, *place;
} gg_pool_cover;

/* A pooling's geometry, computed once. Axis 0 is height, 1 is width. An element is a row of `lanes` floats: samples of
 * BATCH_LAST, or the channels of a block of CHANNELS16. With CHANNELS16 `channels` counts the blocks of all samples. */
typedef struct gg_pool_shape {
    int64_t channels, in[2], out[2], kernel[2], dilation[2], lanes;
    const int32_t *first[2]; /* per output position: the first input position of its window inside the image */
    const int32_t *place[2]; /* place of first[] in the window */
    const int32_t *count[2]; /* number of places inside the image */
    const float *scale;      /* average: 1/divisor per output element (row-major); NULL means max */
    gg_pool_cover cover[2];
    bool tiled;      /* windows do not overlap, leave no gaps and stay inside */
    int index_bytes; /* max: bytes of a saved place: 1, 2 or 4 */
    bool relu; /* max: negative outputs become 0; their saved place is one past the window's last, so no input gets a
                  gradient */
} gg_pool_shape;

/* Channels [begin, end). saved: a place (row-major in the window) for each output value; NULL means not wanted. */
typedef struct gg_cpu_pool {
    void (*max)(const gg_pool_shape *shape, int64_t begin, int64_t end, const float *x, float *y, void *saved);
    void (*max_backward)(const gg_pool_shape *shape, int64_t begin, int64_t end, const void *saved, const float *dy,
                         float *dx);
    void (*average)(const gg_pool_shape *shape, int64_t begin, int64_t end, const float *x, float *y);
    void (*average_backward)(const gg_pool_shape *shape, int64_t begin, int64_t end, const float *dy, float *dx);
} gg_cpu_pool;

/* The values of a group of channels in any layout: `runs` runs, run_step floats apart. A run has `vectors` vectors of
 * GG_LANES floats and a tail of `tail` < GG_LANES floats. A lane belongs to one channel in all vectors. padded: the
 * tail has room for a whole vector, and outputs get zeros there. */
typedef struct gg_norm_runs {
    int64_t runs, run_step, vectors;
    int tail;
    bool padded;
} gg_norm_runs;

/* Parameters of a normalisation, one value a lane. */
typedef struct gg_norm_lanes {
    float scale[GG_LANES], offset[GG_LANES], mean[GG_LANES], slope[GG_LANES], shift[GG_LANES];
} gg_norm_lanes;

/* Batch normalisation. relu: negative results become 0. */
typedef struct gg_cpu_norm {
    /* For each lane the mean and the sum of squared differences from it; both are 0 in a lane without values. */
    void (*moments)(const gg_norm_runs *runs, const float *x, double mean[GG_LANES], double squares[GG_LANES]);
    /* y = scale*x + offset, plus `added` unless it is NULL; y may be x or added. */
    void (*apply)(const gg_norm_runs *runs, const gg_norm_lanes *lanes, bool relu, const float *x, const float *added,
                  float *y);
    /* For each lane the sums of d and of d*(x - mean). d is dy; with relu it is 0 where the ReLU cut the output. y
     * tells where; if y is NULL, apply's result of x alone does. d is written to `passed`, which may be x, dy or y;
     * NULL means not written. */
    void (*products)(const gg_norm_runs *runs, const gg_norm_lanes *lanes, bool relu, const float *x, const float *y,
                     const float *dy, float *passed, double sum[GG_LANES], double product[GG_LANES]);
    /* dx = scale*d + slope*(x - mean) + shift. d is dy; with relu it is 0 where apply's result of x was cut. dx may be
     * dy. */
    void (*gradient)(const gg_norm_runs *runs, const gg_norm_lanes *lanes, bool relu, const float *x, const float *dy,
                     float *dx);
    /* For bfloat16 activations. */
    void (*narrow_moments)(const gg_norm_runs *runs, const uint16_t *x, double mean[GG_LANES],
                           double squares[GG_LANES]);
    void (*narrow_apply)(const gg_norm_runs *runs, const gg_norm_lanes *lanes, bool relu, const uint16_t *x,
                         const uint16_t *added, uint16_t *y);
    void (*narrow_products)(const gg_norm_runs *runs, const gg_norm_lanes *lanes, bool relu, const uint16_t *x,
                            const uint16_t *y, const uint16_t *dy, uint16_t *passed, double sum[GG_LANES],
                            double product[GG_LANES]);
    void (*narrow_gradient)(const gg_norm_runs *runs, const gg_norm_lanes *lanes, bool relu, const uint16_t *x,
                            const uint16_t *dy, uint16_t *dx);
} gg_cpu_norm;

/* Rows of n values. row_ functions take one row of adjacent values. lanes_ functions take GG_LANES rows side by side,
 * `step` floats from a value to the next (softmax: `width` rows). Outputs may be x, or dy. weight and bias have n
 * values; NULL means none. */
typedef struct gg_cpu_rows {
    /* y = (x - mean)*inverse*weight + bias */
    void (*row_apply)(const gg_norm_rows *rows, const float *x, float mean, float inverse, const float *weight,
                      const float *bias, float *y);
    /* The mean, and the sum of squared differences from it. */
    void (*row_moments)(size_t n, const float *x, double *mean, double *squares);
    /* Let v = (x - mean)*inverse and g = dy*weight. sum and product receive the sums of g and of g*v. Adds dy*v to
     * grad_weight and dy to grad_bias, unless they are NULL. */
    void (*row_sums)(const gg_norm_rows *rows, const float *x, const float *dy, float mean, float inverse,
                     const float *weight, double *sum, double *product, float *grad_weight, float *grad_bias);
    /* dx = inverse*(g - sum - v*product) */
    void (*row_gradient)(const gg_norm_rows *rows, const float *x, const float *dy, float mean, float inverse,
                         const float *weight, float sum, float product, float *dx);
    void (*lanes_apply)(const gg_norm_rows *rows, size_t step, const float *x, const float *mean, const float *inverse,
                        const float *weight, const float *bias, float *y);
    void (*lanes_sums)(const gg_norm_rows *rows, size_t step, const float *x, const float *dy, const float *mean,
                       const float *inverse, const float *weight, double sum[GG_LANES], double product[GG_LANES],
                       double *grad_weight, double *grad_bias);
    void (*lanes_gradient)(const gg_norm_rows *rows, size_t step, const float *x, const float *dy, const float *mean,
                           const float *inverse, const float *weight, const float *sum, const float *product,
                           float *dx);
    void (*softmax_row)(size_t n, const float *x, float *y);
    void (*softmax_row_backward)(size_t n, const float *y, const float *dy, float *dx);
    void (*softmax_lanes)(size_t n, size_t step, size_t width, const float *x, float *y);
    void (*softmax_lanes_backward)(size_t n, size_t step, size_t width, const float *y, const float *dy, float *dx);
} gg_cpu_rows;

/* Local response normalisation: divides channel c by (k + share*(sum of squares of channels c - before to c +
 * after))^beta. A channel's values are adjacent; channels are `step` floats apart. */
typedef struct gg_lrn_shape {
    int64_t channels, before, after;
    size_t step;
    float share, beta, k;
} gg_lrn_shape;

/* Max values of each channel in one call. */
#define GG_LRN_STRIP ((size_t)64)

typedef struct gg_cpu_lrn {
    /* sums: the bases of the power, for backward; NULL means not wanted. */
    void (*forward)(const gg_lrn_shape *shape, size_t width, const float *x, float *y, float *sums);
    /* terms: scratch, GG_LRN_STRIP floats a channel. */
    void (*backward)(const gg_lrn_shape *shape, size_t width, const float *x, const float *sums, const float *dy,
                     float *dx, float *terms);
} gg_cpu_lrn;

/* Rows [begin, end): positions of all samples if the prediction lies PLAIN, otherwise samples. begin is a multiple of
 * GG_LANES. Adds to loss_sum and correct; args->result->divisor must be known. The call that ends at the batch's end
 * also clears the gradient's padding lanes. */
typedef struct gg_cpu_loss_kernels {
    void (*loss[GG_LOSS_COUNT])(const gg_loss_args *args, int64_t begin, int64_t end, double *loss_sum,
                                int64_t *correct);
} gg_cpu_loss_kernels;

/* Entries with the meaning of gg_backend. n is a multiple of GG_LANES and pointers are 64-byte aligned; narrow and
 * widen take any alignment. */
typedef struct gg_cpu_arena {
    void (*update)(const gg_update_args *args);
    void (*mix)(size_t n, gg_dtype wire, float share, const float *base, const void *received, const float *sent,
                float *out);
    void (*narrow)(size_t n, const float *in, uint16_t *out);
    void (*widen)(size_t n, const uint16_t *in, float *out);
    void (*widen_add)(size_t n, const uint16_t *in, float *out);
    /* Elements [begin, end) of the sources. */
    void (*weighted_sum)(size_t begin, size_t end, int sources, const float *const *source, const float *scale,
                         float *out);
    void (*narrow_sum)(size_t begin, size_t end, int sources, const uint16_t *const *source, const float *scale,
                       float *out, uint16_t *rounded);
    void (*narrow_difference)(size_t n, const float *a, const uint16_t *b, uint16_t *out);
    double (*sum_squares)(size_t n, const float *a, const float *b);
    bool (*all_finite)(size_t n, const float *a);
    bool (*all_finite_narrow)(size_t n, const uint16_t *a); /* bfloat16; any n and alignment */
} gg_cpu_arena;

/* A batch of images twice: in bfloat16, in blocks of GG_LANES adjacent channels, and in float32, BATCH_LAST. PLAIN is
 * one pixel with all values as channels. */
typedef struct gg_cpu_images {
    int64_t samples, channels, pixels;
    int64_t sample, block, pixel; /* distances, in numbers */
    bool padded;                  /* the last block is whole: zeros after the last channel */
    uint16_t *narrow;
    float *lanes;
} gg_cpu_images;

/* [begin, end) are samples for PLAIN. For BATCH_LAST they are values of a sample, and begin is a multiple of
 * GG_LANES. */
typedef struct gg_cpu_layout {
    void (*gather)(const gg_gather_args *args, int64_t begin, int64_t end);
    /* [begin, end) are values of a sample, begin a multiple of GG_LANES. */
    void (*to_lanes)(int64_t n, int64_t values, int64_t begin, int64_t end, const float *in, float *out);
    void (*from_lanes)(int64_t n, int64_t values, int64_t begin, int64_t end, const float *in, float *out);
    /* Blocks [begin, end); all blocks of a pixel are consecutive. Convert `narrow` to `lanes`, with zeros in lanes
     * without a sample, and back. */
    void (*widen_images)(const gg_cpu_images *images, int64_t begin, int64_t end);
    void (*narrow_images)(const gg_cpu_images *images, int64_t begin, int64_t end);
} gg_cpu_layout;

/* Attention weights of GG_LANES queries side by side. Weights for key k < keys are GG_LANES floats at k*step. Query l
 * sees at most all + l keys; all >= 1. */
typedef struct gg_cpu_attention {
    /* In place: softmax of scale*scores, scale > 0; 0 for keys that a query does not see. `again` gives equal bits from
     * equal scores and `saved`. */
    void (*softmax)(int64_t keys, int64_t all, int64_t step, float scale, float *scores, float saved[2 * GG_LANES]);
    void (*again)(int64_t keys, int64_t all, int64_t step, float scale, const float saved[2 * GG_LANES], float *scores);
    /* In place: turns d, the error of the weights p, into the error of their scores: p*(d - sum of p*d)*scale. */
    void (*error)(int64_t keys, int64_t step, float scale, const float *p, float *d);
    /* out = scale*x if the mask, a row of bytes a query, is not 0, otherwise 0. out may be x. */
    void (*drop)(int64_t keys, int64_t step, const uint8_t *mask, int64_t mask_row, float scale, const float *x,
                 float *out);
} gg_cpu_attention;

/* One step of n hidden units of an LSTM; arrays do not overlap. gates: n each of i, f, g, o, `step` floats apart. */
typedef struct gg_cpu_lstm {
    /* gates: in: arguments of the gate functions; out: their results. before: the cells of the previous step. */
    void (*forward)(int64_t n, int64_t step, float *gates, const float *before, float *cell, float *hidden);
    /* Arguments are `gates` plus `sums`; gates in `sums` are sums_step apart. */
    void (*forward_sums)(int64_t n, int64_t step, float *gates, const float *sums, int64_t sums_step,
                         const float *before, float *cell, float *hidden);
    /* gates: in: the results of forward; out: errors of their arguments. The error of the hidden units is error +
     * later. cell_error: in: error of this step's cells from later steps; out: error of the previous step's cells. */
    void (*backward)(int64_t n, int64_t step, float *gates, const float *before, const float *cell, const float *error,
                     const float *later, float *cell_error);
} gg_cpu_lstm;

/* The selection of gg_pack_args in a run of whole bins of a parameter; names are gg_pack_args'. */
typedef struct gg_choose_args {
    size_t n, bin;
    float scale, factor;
    const float *gradient; /* NULL means zeros */
    float *clear;          /* the gradient, to be set to zero; NULL means that it stays */
    float *residue;
    const float *value, *known; /* residue NULL */
    /* with a residue: gg_pack_mark_bytes a bin; NULL means none. In: marked elements first get residue -= owed with the
     * residue's sign. Out: marks the chosen elements. owed >= 0 */
    unsigned char *marks;
    float owed;
    uint32_t *greatest;       /* out: the bits of max |G| of each bin */
    uint16_t *place, *chosen; /* out: `place` has room for n; NULL means that nothing is chosen */
} gg_choose_args;

/* Entries of chosen elements, bin after bin. `wide`: units of two bytes, like gg_pack_args.place. Otherwise units of
 * one byte: flags in the top two bits, the place in the others. */
typedef struct gg_entries_args {
    const unsigned char *at;
    size_t n; /* number of units */
    bool wide;
    uint32_t bin;
    /* In and out: the begin of the last entry's bin, and the min place of the next entry in it. */
    uint32_t start, least;
    uint32_t *element; /* out: room for n, with GG_ELEMENT_NEGATIVE; values after the returned count are undefined */
} gg_entries_args;

/* Described in their own headers, NAME_kernels.h. */
typedef struct gg_gemm_kernels gg_gemm_kernels;
typedef struct gg_winograd_kernels gg_winograd_kernels;
typedef struct gg_paired_kernels gg_paired_kernels;
typedef struct gg_split_kernels gg_split_kernels;
typedef struct gg_split_conv_kernels gg_split_conv_kernels;
typedef struct gg_image_kernels gg_image_kernels;

/* The kernels of one level. */
typedef struct gg_cpu_kernels {
    gg_isa isa;
    const gg_cpu_elementwise *elementwise;
    const gg_cpu_pool *pool;
    const gg_cpu_norm *norm;
    const gg_cpu_rows *rows;
    const gg_cpu_lrn *lrn;
    const gg_cpu_loss_kernels *loss;
    const gg_cpu_arena *arena;
    size_t (*choose)(const gg_choose_args *args); /* returns the number of entries in `place` */
    /* Returns the number of leading units that are valid entries. Stops at a place outside of bins, all ones, or not
     * ascending. Without valid entries start and least stay. */
    size_t (*entries)(gg_entries_args *args);
    const gg_cpu_layout *layout;
    const gg_cpu_attention *attention;
    const gg_cpu_lstm *lstm;
    const gg_gemm_kernels *gemm;
    const gg_winograd_kernels *winograd;
    /* NULL means that the level has none. */
    const gg_paired_kernels *paired; /* AVX-512; use gg_paired_kernels_for */
    const gg_split_kernels *split;   /* AMX, like the following */
    const gg_split_conv_kernels *split_conv;
    const gg_image_kernels *image;
} gg_cpu_kernels;

/* The kernels of a level; NULL means that this build has none. gg_cpu_supports tells if the CPU runs them. */
const gg_cpu_kernels *gg_cpu_kernels_for(gg_isa isa);
/* Kernels for host work with any device: the level of gg_isa_select, asked once a process. */
const gg_cpu_kernels *gg_cpu_host_kernels(void);

#define GG_CPU_MAX_THREADS 512

/* The head of every CPU device; a table appends its own fields. */
typedef struct gg_cpu_device {
    gg_device head;
    const gg_cpu_kernels *kernels;
    size_t second_cache;                /* bytes of a core's L2 cache */
    double partial[GG_CPU_MAX_THREADS]; /* each thread's part of a reduction */
    int64_t partial_count[GG_CPU_MAX_THREADS];
} gg_cpu_device;

#endif
