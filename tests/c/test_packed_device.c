/* Packed messages on a device whose memory the host cannot touch. Messages and results have the CPU's bits. Both refuse
 * invalid messages alike, whatever the bytes, and write nothing outside of the segments. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "exchange/codec/packed.h"
#include "strict/strict.h"

enum { EXTENT = 3840, STEPS = 3 };

/* Codes of one byte, codes of two, and a parameter that travels whole; with gaps. */
static const gg_segment segment[] = {{.offset = 3, .count = 700, .bin = 5, .name = "short"},
                                     {.offset = 704, .count = 3000, .bin = 100, .name = "long"},
                                     {.offset = 3712, .count = 40, .name = "dense"}};
enum { SEGMENTS = sizeof segment / sizeof *segment };

typedef struct side {
    gg_device *device;
    gg_packing packing;
    gg_compression_counts counts;
    float *gradient, *own, *out;
    unsigned char *message;
    size_t bytes;
} side;

static void open_side(side *s, const gg_backend *table, const gg_compression *options) {
    gg_pack_sizes sizes = {0};
    const gg_device_options how = {.threads = 1, .isa = GG_ISA_SCALAR, .number = 5};
    *s = (side){0};
    CHECK_OK(table->open(&how, &s->device));
    CHECK_OK(gg_device_alloc(s->device, EXTENT * sizeof(float), "gradient", &s->gradient));
    CHECK_OK(gg_device_alloc(s->device, EXTENT * sizeof(float), "own", &s->own));
    CHECK_OK(gg_device_alloc(s->device, EXTENT * sizeof(float), "out", &s->out));
    CHECK_OK(gg_device_alloc_host(s->device, gg_packed_capacity(segment, SEGMENTS, options), "message", &s->message));
    s->packing = (gg_packing){
        .compression = options, .device = s->device, .segment = segment, .segments = SEGMENTS, .counts = &s->counts};
    gg_pack_sizes_add(&sizes, s->device, segment, SEGMENTS);
    CHECK_OK(gg_pack_room_create(s->device, &sizes, &s->packing.room));
}

static void close_side(side *s) {
    gg_pack_room_destroy(s->packing.room);
    gg_device_free_host(s->device, s->message);
    gg_device_free(s->device, s->gradient);
    gg_device_free(s->device, s->own);
    gg_device_free(s->device, s->out);
    s->device->table->close(s->device);
}

static void read_floats(side *s, const float *from, float *out) {
    CHECK_OK(gg_device_read(s->device, out, from, EXTENT * sizeof(float)));
}

static bool equal(side *cpu, side *device, const float *a, const float *b) {
    static float left[EXTENT], right[EXTENT];
    read_floats(cpu, a, left);
    read_floats(device, b, right);
    return memcmp(left, right, sizeof left) == 0;
}

static void fill(float *values, unsigned number) {
    unsigned state = 2654435769u * (number + 1);
    for (int i = 0; i < EXTENT; ++i) {
        state = state * 1664525u + 1013904223u;
        values[i] = i / 600 % 4 == 1 ? 0 : (float)(state >> 8) / 8388608.0f - 1;
    }
}

/* What a side says of a call, with its message. */
typedef struct answer {
    gg_status status;
    char text[512];
} answer;

static answer answer_of(gg_status status) {
    answer a = {.status = status};
    if (status != GG_OK) (void)snprintf(a.text, sizeof a.text, "%s", gg_error_message());
    return a;
}

static bool alike(const answer *a, const answer *b) { return a->status == b->status && strcmp(a->text, b->text) == 0; }

static answer unpack(side *s, const unsigned char *message, size_t bytes) {
    return answer_of(gg_unpack_add(&s->packing, message, bytes, 0.5f, s->out));
}

static bool in_a_segment(int i) {
    for (int k = 0; k < SEGMENTS; ++k)
        if ((size_t)i >= segment[k].offset && (size_t)i < segment[k].offset + segment[k].count) return true;
    return false;
}

static void check_wrong_messages(side *cpu, side *device) {
    static unsigned char wrong[65536];
    static float out[EXTENT];
    const size_t bytes = cpu->bytes;
    int refused = 0;
    CHECK(bytes <= sizeof wrong);
    for (size_t at = 0; at < bytes; at += at < 40 ? 1 : 5) {
        memcpy(wrong, cpu->message, bytes);
        wrong[at] ^= (unsigned char)(at % 3 == 0 ? 0x80 : at % 3 == 1 ? 0x01 : 0xff);
        const answer a = unpack(cpu, wrong, bytes), b = unpack(device, wrong, bytes);
        refused += a.status == GG_ERROR_COMM;
        if (!CHECK(alike(&a, &b))) printf("byte %zu: '%s' and '%s'\n", at, a.text, b.text);
    }
    for (size_t shorter = 0; shorter < bytes; shorter += 37) {
        const answer a = unpack(cpu, cpu->message, shorter), b = unpack(device, cpu->message, shorter);
        CHECK(a.status == GG_ERROR_COMM && alike(&a, &b));
    }
    CHECK(refused > 20);
    read_floats(device, device->out, out);
    for (int i = 0; i < EXTENT; ++i)
        if (!in_a_segment(i)) CHECK(out[i] == 0);
    CHECK_OK(gg_device_check(device->device));
}

static void check_mode(gg_compression_mode mode, gg_dtype values, bool difference) {
    static float numbers[EXTENT];
    gg_compression options = {.active = true, .mode = mode, .values = values};
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) options.factor[family] = 2;
    side cpu, device;
    open_side(&cpu, &gg_backend_native, &options);
    open_side(&device, &gg_backend_strict, &options);
    for (unsigned step = 0; step < STEPS; ++step) {
        fill(numbers, step);
        for (int which = 0; which < 2; ++which) {
            side *s = which == 0 ? &cpu : &device;
            CHECK_OK(gg_device_write(s->device, s->gradient, numbers, sizeof numbers));
            CHECK_OK(difference ? gg_pack_difference(&s->packing, s->gradient, s->own, s->message, &s->bytes)
                                : gg_pack_and_clear(&s->packing, 0.7f, s->gradient, s->own, s->message, &s->bytes));
            CHECK_OK(gg_unpack_add(&s->packing, s->message, s->bytes, 0.5f, s->out));
        }
        CHECK_INT(device.bytes, cpu.bytes);
        CHECK(memcmp(device.message, cpu.message, cpu.bytes) == 0);
        CHECK(equal(&cpu, &device, cpu.own, device.own));
        CHECK(equal(&cpu, &device, cpu.gradient, device.gradient));
        CHECK(equal(&cpu, &device, cpu.out, device.out));
        CHECK(memcmp(&cpu.counts, &device.counts, sizeof cpu.counts) == 0);
    }
    check_wrong_messages(&cpu, &device);
    close_side(&cpu);
    close_side(&device);
}

/* One rank's choice, and the values of it. */
static void check_choice(gg_dtype dtype) {
    static float numbers[EXTENT];
    gg_compression options = {.active = true, .mode = GG_COMPRESSION_EXACT, .values = dtype};
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) options.factor[family] = 3;
    side both[2];
    size_t values[2];
    void *moved[2];
    open_side(&both[0], &gg_backend_native, &options);
    open_side(&both[1], &gg_backend_strict, &options);
    fill(numbers, 9);
    for (int i = 0; i < 2; ++i) {
        side *s = &both[i];
        CHECK_OK(gg_device_write(s->device, s->gradient, numbers, sizeof numbers));
        CHECK_OK(gg_pack_accumulate(&s->packing, 0.25f, s->gradient, s->own));
        CHECK_OK(gg_pack_choice(&s->packing, 0.5f, s->gradient, s->own, s->message, &s->bytes));
        CHECK_OK(gg_choice_values(segment, SEGMENTS, s->message, s->bytes, &values[i]));
        CHECK_OK(gg_device_alloc_host(s->device, values[i] * gg_dtype_size(dtype), "values", &moved[i]));
        gg_pack_values(&s->packing, s->message, dtype, s->own, moved[i]);
        gg_unpack_values_add(&s->packing, s->message, dtype, moved[i], 2.0f, s->out);
        gg_device_finish(s->device);
    }
    CHECK_INT(values[1], values[0]);
    CHECK(memcmp(both[0].message, both[1].message, both[0].bytes) == 0);
    CHECK(memcmp(moved[0], moved[1], values[0] * gg_dtype_size(dtype)) == 0);
    CHECK(equal(&both[0], &both[1], both[0].own, both[1].own));
    CHECK(equal(&both[0], &both[1], both[0].out, both[1].out));
    for (int i = 0; i < 2; ++i) {
        gg_device_free_host(both[i].device, moved[i]);
        close_side(&both[i]);
    }
}

/* What is not finite is named, wherever it lies. */
static void check_spoiled(gg_compression_mode mode, bool difference) {
    static const struct {
        int at;
        float value;
    } bad[] = {{3 + 456, NAN}, {704 + 2999, INFINITY}, {3712 + 7, -INFINITY}};
    static float numbers[EXTENT];
    for (size_t k = 0; k < sizeof bad / sizeof *bad; ++k) {
        gg_compression options = {.active = true, .mode = mode, .values = GG_FLOAT32};
        side both[2];
        answer said[2];
        open_side(&both[0], &gg_backend_native, &options);
        open_side(&both[1], &gg_backend_strict, &options);
        fill(numbers, (unsigned)k);
        numbers[bad[k].at] = bad[k].value;
        for (int i = 0; i < 2; ++i) {
            side *s = &both[i];
            CHECK_OK(gg_device_write(s->device, s->gradient, numbers, sizeof numbers));
            said[i] = answer_of(difference ? gg_pack_difference(&s->packing, s->gradient, s->own, s->message, &s->bytes)
                                           : gg_pack(&s->packing, 1, s->gradient, s->own, s->message, &s->bytes));
        }
        CHECK_INT(said[0].status, GG_ERROR_NUMERIC);
        if (!CHECK(alike(&said[0], &said[1]))) printf("'%s' and '%s'\n", said[0].text, said[1].text);
        close_side(&both[0]);
        close_side(&both[1]);
    }
}

int main(void) {
    gg_cpu_register();
    const gg_float_mode former = gg_parallel_enter();
    for (int difference = 0; difference < 2; ++difference) {
        check_mode(GG_COMPRESSION_STRICT, GG_FLOAT32, difference);
        check_mode(GG_COMPRESSION_SAFE, GG_FLOAT32, difference);
        check_mode(GG_COMPRESSION_EXACT, GG_FLOAT32, difference);
        check_mode(GG_COMPRESSION_EXACT, GG_BFLOAT16, difference);
        check_spoiled(GG_COMPRESSION_STRICT, difference);
        check_spoiled(GG_COMPRESSION_EXACT, difference);
    }
    check_choice(GG_FLOAT32);
    check_choice(GG_BFLOAT16);
    gg_parallel_leave(former);
    return CHECK_RESULT;
}
