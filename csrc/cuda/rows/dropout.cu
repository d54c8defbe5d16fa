/* DROPOUT, and dropout between the layers of an LSTM. */
#include "cuda/nn.cuh"

struct dropout_shape {
    int64_t batch, features, blocks;
    int64_t channels; /* for NHWC; 1 for PLAIN */
};

/* A thread has a feature of four samples, which share a block of words. */
template <class T> static __global__ void drop(dropout_shape s, gg_drawing draw, const T *in, T *out) {
    const int64_t elements = s.features / s.channels;
    for (int64_t i = gg_thread_number(); i < s.blocks * s.features; i += gg_thread_count()) {
        const int64_t block = i / s.features, place = i % s.features;
        const int64_t feature = s.channels > 1 ? place % s.channels * elements + place / s.channels : place;
        const gg_words words = random_block(draw, (uint32_t)(feature * s.blocks + block));
        for (int w = 0; w < 4 && 4 * block + w < s.batch; ++w) {
            const int64_t at = (4 * block + w) * s.features + place;
            gg_store(out + at, dropped(draw, words.word[w], gg_load(in + at)));
        }
    }
}

void gg_cuda_dropout(gg_cuda_stream stream, const gg_cuda_dropout_args *args) {
    dropout_shape s;
    s.batch = args->batch;
    s.features = args->features;
    s.blocks = ceil_div(args->batch, 4);
    s.channels = args->layout == GG_LAYOUT_NHWC ? args->channels : 1;
    const dim3 blocks(blocks_for(s.blocks * s.features, GG_BLOCK)), block(GG_BLOCK);
    const gg_drawing draw = drawing_of(&args->draw);
    if (args->dtype == GG_BFLOAT16)
        GG_LAUNCH((drop<gg_bfloat16>), blocks, block, 0, stream, s, draw, (const gg_bfloat16 *)args->in,
                  (gg_bfloat16 *)args->out);
    else GG_LAUNCH((drop<float>), blocks, block, 0, stream, s, draw, (const float *)args->in, (float *)args->out);
}

template <class T>
static __global__ void drop_rows(int64_t rows, int64_t length, int64_t first_row, gg_drawing draw, const T *in,
                                 T *out) {
    const int64_t blocks = (length + 3) / 4;
    for (int64_t i = gg_thread_number(); i < rows * blocks; i += gg_thread_count()) {
        const int64_t row = i / blocks, block = i % blocks;
        const gg_words words = random_block(draw, (uint32_t)((first_row + row) * blocks + block));
        for (int w = 0; w < 4 && 4 * block + w < length; ++w) {
            const int64_t at = row * length + 4 * block + w;
            gg_store(out + at, dropped(draw, words.word[w], gg_load(in + at)));
        }
    }
}

void gg_cuda_dropout_rows(gg_cuda_stream stream, const gg_cuda_dropout_rows_args *args) {
    const dim3 blocks(blocks_for(args->rows * ceil_div(args->length, 4), GG_BLOCK)), block(GG_BLOCK);
    const gg_drawing draw = drawing_of(&args->draw);
    if (args->dtype == GG_BFLOAT16)
        GG_LAUNCH((drop_rows<gg_bfloat16>), blocks, block, 0, stream, args->rows, args->length, args->first_row, draw,
                  (const gg_bfloat16 *)args->in, (gg_bfloat16 *)args->out);
    else
        GG_LAUNCH((drop_rows<float>), blocks, block, 0, stream, args->rows, args->length, args->first_row, draw,
                  (const float *)args->in, (float *)args->out);
}
