/* Shared by both CPU tables: opening a device, and the loss, arena and layout entries of gg_backend. These split work
 * over the device's threads and call its kernels. Every gg_device must begin with a gg_cpu_device. */
#ifndef GG_CPU_SHARED_H
#define GG_CPU_SHARED_H

#include "cpu/kernels.h"

/* Allocates a zeroed block of `bytes` >= sizeof(gg_cpu_device), and fills its head and kernels. */
gg_status gg_cpu_device_open(const gg_backend *table, size_t bytes, const gg_device_options *options, gg_device **out);
/* Frees the block; NULL is a no-op. */
void gg_cpu_device_close(gg_device *device);
const gg_cpu_kernels *gg_cpu_device_kernels(const gg_device *device);
/* Number of the device's threads worth using for `work` elements. */
int gg_cpu_threads_for(const gg_device *device, size_t work);

/* Convert float32 to bfloat16 and back in the calling thread: any number of elements, any alignment. */
void gg_cpu_narrow_any(const gg_cpu_kernels *kernels, size_t n, const float *in, uint16_t *out);
void gg_cpu_widen_any(const gg_cpu_kernels *kernels, size_t n, const uint16_t *in, float *out);

/* Creates a bfloat16 operation that computes in float32 by an inner operation: `create` makes desc in float32. For
 * CONV2D, LINEAR or LSTM. GG_ERROR_UNSUPPORTED if the inner one lies BATCH_LAST. */
typedef gg_status (*gg_cpu_create_fn)(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cpu_widened_create(gg_device *device, const gg_op_desc *desc, gg_cpu_create_fn create, gg_op **out);
/* Creates a bfloat16 CONV2D by GG_ALGORITHM_TURNED or its variants, for images in PLAIN, NHWC or CHANNELS16. `create`
 * makes the inner operation in BATCH_LAST. */
gg_status gg_cpu_turned_create(gg_device *device, const gg_op_desc *desc, gg_layout input, gg_layout output,
                               gg_cpu_create_fn create, gg_op **out);

void gg_cpu_loss(gg_device *device, const gg_loss_args *args);
void gg_cpu_update(gg_device *device, int count, const gg_update_args *args);
void gg_cpu_mix(gg_device *device, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                const float *sent, float *out);
void gg_cpu_narrow(gg_device *device, size_t n, const float *in, uint16_t *out);
void gg_cpu_widen(gg_device *device, size_t n, const uint16_t *in, float *out);
void gg_cpu_widen_add(gg_device *device, size_t n, const uint16_t *in, float *out);
void gg_cpu_weighted_sum(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                         float *out);
void gg_cpu_narrow_sum(gg_device *device, size_t n, int sources, const uint16_t *const *source, const float *scale,
                       float *out, uint16_t *rounded);
void gg_cpu_narrow_difference(gg_device *device, size_t n, const float *a, const uint16_t *b, uint16_t *out);
double gg_cpu_sum_squares(gg_device *device, size_t n, const float *a, const float *b);
bool gg_cpu_all_finite(gg_device *device, size_t n, const float *a);
bool gg_cpu_all_finite_narrow(gg_device *device, size_t n, const uint16_t *a); /* any n, bfloat16 */
void gg_cpu_pack(gg_device *device, int count, const gg_pack_args *args);      /* pack, add and take: pack.c */
void gg_cpu_add_elements(gg_device *device, const gg_elements_args *args);
void gg_cpu_take_elements(gg_device *device, const gg_elements_args *args);
void gg_cpu_gather(gg_device *device, const gg_gather_args *args);
void gg_cpu_weight_gradient(gg_device *device, const gg_weight_gradient_args *args);
bool gg_cpu_factors(const gg_device *device, gg_gradient_factors *factors); /* these four: factors.c */
void gg_cpu_keep_input(gg_device *device, const gg_gradient_factors *factors, const gg_vectors *input, void *out);
void gg_cpu_keep_error(gg_device *device, const gg_gradient_factors *factors, const gg_vectors *error, void *out);
void gg_cpu_gradient_rows(gg_device *device, const gg_gradient_factors *factors, const void *input, const void *error,
                          const gg_gradient_rows *rows);
/* Max rows of one float32 sum, and columns at a time. One float32 sum over all rows would lose digits. */
enum { GG_SUM_ROWS = 256, GG_SUM_COLUMNS = 1024 };

/* out[j] = sum over rows i of in[i*in_row + j]. The number of threads does not change the bits. */
void gg_cpu_column_sums(gg_device *device, int64_t rows, int64_t cols, const float *in, int64_t in_row, float *out);
void gg_cpu_columns(gg_device *device, const gg_vectors *from, int64_t first, int64_t count, float *out);
void gg_cpu_transpose(gg_device *device, int64_t n, int64_t values, bool to_lanes, const float *in, float *out);

/* Entries that both tables share. */
#define GG_CPU_SHARED_ENTRIES                                                                                          \
    .loss = gg_cpu_loss, .update = gg_cpu_update, .mix = gg_cpu_mix, .narrow = gg_cpu_narrow, .widen = gg_cpu_widen,   \
    .widen_add = gg_cpu_widen_add, .weighted_sum = gg_cpu_weighted_sum, .narrow_sum = gg_cpu_narrow_sum,               \
    .narrow_difference = gg_cpu_narrow_difference, .sum_squares = gg_cpu_sum_squares, .all_finite = gg_cpu_all_finite, \
    .pack = gg_cpu_pack, .add_elements = gg_cpu_add_elements, .take_elements = gg_cpu_take_elements,                   \
    .gather = gg_cpu_gather, .weight_gradient = gg_cpu_weight_gradient, .factors = gg_cpu_factors,                     \
    .keep_input = gg_cpu_keep_input, .keep_error = gg_cpu_keep_error, .gradient_rows = gg_cpu_gradient_rows,           \
    .columns = gg_cpu_columns, .transpose = gg_cpu_transpose

#endif
