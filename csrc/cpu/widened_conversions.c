/* Activations between bfloat16 and float32. A ReLU is applied to the bfloat16 numbers while they are converted, a piece
 * at a time, so it moves nothing.
 *
 * The float32 images of a turned convolution lie BATCH_LAST: where channels do not fill vectors but samples do, turning
 * costs less than it saves. */
#include "base/parallel.h"
#include "cpu/widened_private.h"

typedef struct convert_job {
    const gg_cpu_kernels *kernels;
    const gg_widened_side *side;
    bool narrows;         /* else it widens */
    bool relu;            /* of what has been narrowed */
    const uint16_t *mask; /* of what is widened: numbers become 0 where this is not positive; NULL: none do */
    uint16_t *narrow;
    float *wide;
} convert_job;

/* So many numbers stay in the first-level cache between the steps of a conversion. */
enum { PIECE = 4096 };

/* What is turned is not converted: the ReLU alone is applied. */
static void convert_pieces(void *context, int thread, int threads) {
    const convert_job *job = context;
    const bool stays = job->side->turned;
    size_t begin, end;
    gg_parallel_split(job->side->narrow, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin; at < end; at += PIECE) {
        const size_t count = end - at < PIECE ? end - at : PIECE;
        uint16_t *narrow = job->narrow + at;
        if (job->mask != NULL) job->kernels->elementwise->relu_narrow_backward(count, job->mask + at, narrow, narrow);
        if (job->narrows && !stays) gg_cpu_narrow_any(job->kernels, count, job->wide + at, narrow);
        if (!job->narrows && !stays) gg_cpu_widen_any(job->kernels, count, narrow, job->wide + at);
        if (job->relu) job->kernels->elementwise->relu_narrow(count, narrow, narrow);
    }
}

typedef struct turn_job {
    const convert_job *convert;
    gg_cpu_images images;
} turn_job;

/* How they lie in bfloat16. */
static gg_cpu_images images_of(const convert_job *job) {
    const gg_widened_side *side = job->side;
    const int64_t values = gg_shape_count(&side->shape), channels = side->shape.size[0];
    gg_cpu_images it = {.samples = side->samples,
                        .channels = channels,
                        .pixels = values / channels,
                        .sample = values,
                        .block = GG_LANES,
                        .pixel = channels,
                        .narrow = job->narrow,
                        .lanes = job->wide};
    switch (side->layout) {
    case GG_LAYOUT_CHANNELS16:
        it.pixel = GG_LANES;
        it.block = it.pixels * GG_LANES;
        it.sample = it.pixels * gg_lanes_padded(channels);
        it.padded = true;
        break;
    case GG_LAYOUT_PLAIN:
        it.channels = values;
        it.pixels = 1;
        break;
    default: break; /* NHWC */
    }
    return it;
}

static void turn_blocks(void *context, int thread, int threads) {
    const turn_job *job = context;
    const gg_cpu_layout *kernels = job->convert->kernels->layout;
    const int64_t blocks = gg_lanes_padded(job->images.channels) / GG_LANES;
    size_t begin, end;
    gg_parallel_split((size_t)(blocks * job->images.pixels), 1, thread, threads, &begin, &end);
    (job->convert->narrows ? kernels->narrow_images : kernels->widen_images)(&job->images, (int64_t)begin,
                                                                             (int64_t)end);
}

/* Where images are turned, a ReLU is applied before or behind it to what lies together. */
static void convert(gg_device *device, convert_job job) {
    const int threads = gg_cpu_threads_for(device, job.side->narrow);
    job.kernels = gg_cpu_device_kernels(device);
    if (!job.side->turned || job.mask != NULL) gg_parallel_run(threads, convert_pieces, &job);
    if (!job.side->turned) return;
    turn_job turn = {.convert = &job, .images = images_of(&job)};
    gg_parallel_run(threads, turn_blocks, &turn);
    if (job.relu) gg_parallel_run(threads, convert_pieces, &job);
}

void gg_widened_widen(gg_device *device, const gg_widened_side *side, const uint16_t *mask, uint16_t *narrow,
                      float *wide) {
    convert(device, (convert_job){.side = side, .mask = mask, .narrow = narrow, .wide = wide});
}

void gg_widened_narrow(gg_device *device, const gg_widened_side *side, bool relu, float *wide, uint16_t *narrow) {
    convert(device, (convert_job){.side = side, .narrows = true, .relu = relu, .narrow = narrow, .wide = wide});
}
