/* Packed messages: AdaComp's choice of elements (compression.h), written into a message and added elsewhere.
 *
 * Segments are whole parameters in the order of the arenas. Arrays are given by their element 0, from which the offsets
 * of segments count. Only rooms, marks and pieces are allocated. All calculations are in float32, without fused
 * products:
 *
 *     d = scale*g      G = R + d      H = G + (factor - 1)*d
 *
 * so all instruction sets choose equal elements and write equal bytes.
 *
 * - The choice compares |H| with the greatest |G| of the bin; ties are chosen.
 * - A chosen element with G = 0 (possible through H) is not sent: it has no sign.
 * - A bin whose G are all 0 sends nothing.
 * - The scale of a segment is the mean of gmax over all its bins, added in double in the order of the bins and rounded
 *   to float32. If it is 0, nothing is sent.
 * - Mode SAFE sends chosen elements only if |G| >= scale/2.
 * - Segments with bin 0 are dense: all of R + d is sent as float32, and R becomes 0.
 *
 * ---- The message ----
 *
 * Numbers are little-endian, and floats IEEE 754. Every part begins at a multiple of 4 bytes from the start; gaps are
 * zero.
 *
 *     header   16 bytes: "gP"; version, 1 byte (1); form, 1 byte; layout, 4 bytes: a hash of the segments (number,
 *              bins, sizes, relative offsets); 8 bytes: size of the whole message in bytes
 *     parts    one for each segment, in order
 *
 *     dense segment         its values, float32
 *     packed, form SCALE    4 bytes: bytes of codes; 4 bytes: the scale, float32; codes
 *     packed, form CHOICE   4 bytes: bytes of codes; 4 bytes: elements chosen; codes. Dense segments have no part.
 *     packed, form NARROW   as CHOICE; then one bfloat16 a chosen element, in order
 *     packed, form VALUES   as CHOICE; then one float32 a chosen element, in order
 *
 * Codes are units of 1 byte if the segment's bin has less than 64 elements, else of 2. The highest two bits are flags,
 * the rest is the place in the bin:
 *
 *     place                 one element. Highest bit: it is the first of its bin, which is the next one. Second: it is
 *                           negative (form SCALE; else 0). Places in a bin ascend.
 *     all ones, flags 0     the next bin is empty
 *     all ones, flags 1     the next 2 + n bins are, where n is the next unit
 *     all ones, flags 2     the next n bins are, where n is the next 4 bytes
 *
 * Bins after the last mentioned one are empty.
 *
 * ---- Device and host ----
 *
 * Three entries of the backend's table compute. `pack` chooses from a parameter, leaves unsent values in the residue,
 * and gives places and values as lists in host memory. `add_elements` adds to elements of an arena, and `take_elements`
 * takes values from them. These entries know nothing of messages, and they alone read and write arenas, which may
 * therefore lie in device memory.
 *
 * The host does the rest: it makes the message from the lists, counts, and checks arrived messages. It passes only
 * checked elements of a message to the device; on the CPU elements are added where they are read. A message is
 * complete, and its length known, when the call that makes it returns: on a device it waits for the lists. Messages and
 * values lie in host memory that the device shares. */
#ifndef GG_EXCHANGE_CODEC_PACKED_H
#define GG_EXCHANGE_CODEC_PACKED_H

#include "exchange/codec/compression.h"
#include "ops/backend.h"

/* Max elements of a part, because its bytes are counted in 32 bits. */
#define GG_MAX_PACKED ((size_t)1 << 29)

/* Working memory of packing. One packing or unpacking at a time; its content is lost between calls. */
typedef struct gg_pack_room gg_pack_room;

/* Sizes that the longest of several messages needs; all zero means no message. */
typedef struct gg_pack_sizes {
    size_t segments, scratch, bins, places, elements;
} gg_pack_sizes;

void gg_pack_sizes_add(gg_pack_sizes *sizes, const gg_device *device, const gg_segment *segment, int segments);
gg_status gg_pack_room_create(gg_device *device, const gg_pack_sizes *sizes, gg_pack_room **out);
void gg_pack_room_destroy(gg_pack_room *room); /* waits for the device's work; NULL is a no-op */

/* Sent values that are still in the residue of some segments, for modes STRICT and SAFE. */
typedef struct gg_pack_marks gg_pack_marks;

gg_status gg_pack_marks_create(const gg_segment *segment, int segments, gg_pack_marks **out);
void gg_pack_marks_destroy(gg_pack_marks *marks); /* NULL is a no-op */

typedef struct gg_packing {
    const gg_compression *compression; /* of the packed values */
    gg_device *device;
    const gg_segment *segment;
    int segments;
    gg_pack_room *room;            /* of this device, with room for these segments */
    gg_compression_counts *counts; /* counts sent values; NULL means not counted */
    /* Called before a gradient is read, with runs of elements, whole lanes, that cover each segment once and in order.
     * May write the gradient; on the CPU the run stays in cache. Returns NULL, or on the CPU the place of the run's
     * gradient, valid up to the next call. NULL means none. */
    const float *(*prepare)(void *context, size_t offset, size_t count);
    void *context;
    /* NULL means that values sent by gg_pack and gg_pack_and_clear leave the residue at once. Else they leave it at the
     * next of these calls, which reads the residue anyway, or at gg_pack_complete; with equal bits. Requires these
     * segments and always one residue. Not on a device with its own memory. */
    gg_pack_marks *marks;
} gg_packing;

/* Max bytes of a message of these segments, in any form. */
size_t gg_packed_capacity(const gg_segment *segment, int segments, const gg_compression *compression);

/* residue += scale*gradient; then moves the sent values into `message`, of gg_packed_capacity bytes and aligned to 4.
 * residue + sent is exact, element by element, but for float32's rounding of R + d and of the remainder. gradient NULL
 * means zeros. *bytes: the message's. GG_ERROR_NUMERIC if G has NaN or an infinity: names the segment's place among
 * those given, its name, and the element; the residue is then invalid. Mode EXACT gives form NARROW or VALUES; the
 * rounding error of bfloat16 stays in the residue. */
gg_status gg_pack(const gg_packing *packing, float scale, const float *gradient, float *residue, void *message,
                  size_t *bytes);

/* gg_pack, and zeroes the segments' gradient in the same pass over memory, also on failure. */
gg_status gg_pack_and_clear(const gg_packing *packing, float scale, float *gradient, float *residue, void *message,
                            size_t *bytes);

/* Subtracts marked sent values from the residue. */
void gg_pack_complete(const gg_packing *packing, float *residue);

/* gg_pack of a difference, when sender and receiver each hold a copy of the receiver's values: G = value - known, H =
 * factor*G. So elements with at least 1/factor of their bin's greatest difference are chosen. Adds the sent values to
 * `known`, with the bits of gg_unpack_add with factor 1 at the receiver. Dense segments send value - known. */
gg_status gg_pack_difference(const gg_packing *packing, const float *value, float *known, void *message, size_t *bytes);

/* True if a message's header matches these segments; its parts are not checked. */
bool gg_packed_fits(const gg_segment *segment, int segments, const void *message, size_t bytes);

/* out += factor * the message's values: the product is rounded, then the sum. GG_ERROR_COMM describes a message that is
 * incomplete or of other segments. Parts before the wrong one may have been added, but never anything outside of the
 * segments, whatever the bytes. `message` is aligned to 4, in any host memory, and not read after the call. */
gg_status gg_unpack_add(const gg_packing *packing, const void *message, size_t bytes, float factor, float *out);

/* ---- Sums in pieces ---- */

/* GG_ERROR_COMM as gg_unpack_add; adds nothing. */
gg_status gg_packed_check(const gg_packing *packing, const void *message, size_t bytes);

/* Memory for a sum in pieces of at most `messages` messages of these segments. */
typedef struct gg_pack_pieces gg_pack_pieces;

gg_status gg_pack_pieces_create(const gg_device *device, const gg_segment *segment, int segments, int messages,
                                gg_pack_pieces **out);
void gg_pack_pieces_destroy(gg_pack_pieces *pieces); /* NULL is a no-op */

typedef void gg_pack_piece(void *context, size_t offset, size_t count, const float *sum, gg_lines filled);

/* Sum of messages that is read once, so needs no array, most of whose elements would be zero. Calls `piece` with the
 * sum run by run in the order of the segments, each whole lanes, with zeros behind a parameter's end. The bits are
 * those of gg_unpack_add with factor 1, message after message, to zeros. The messages belong to this packing's
 * segments, have passed gg_packed_check, and lie in host memory. `sum` and its filled lines are valid during the call.
 * Not on a device with its own memory. */
void gg_unpack_pieces(const gg_packing *packing, gg_pack_pieces *pieces, const void *const *message, int messages,
                      gg_pack_piece *piece, void *context);

/* ---- One rank chooses for all ---- */

/* residue += scale*gradient in all segments, also dense ones. Writes the choice of elements, and leaves their values in
 * the residue. The choice is that of `mode`, STRICT or SAFE. */
gg_status gg_pack_choice(const gg_packing *packing, float scale, const float *gradient, float *residue, void *choice,
                         size_t *bytes);
/* residue += scale*gradient in all segments, for the ranks that do not choose. Checks as gg_pack does. */
gg_status gg_pack_accumulate(const gg_packing *packing, float scale, const float *gradient, float *residue);
/* Counts the values of a choice, with those of dense segments. Checks the whole message. Called before gg_pack_values
 * and gg_unpack_values_add, which trust the message. */
gg_status gg_choice_values(const gg_segment *segment, int segments, const void *choice, size_t bytes, size_t *values);
/* Moves the residue's values at the chosen elements and in dense segments to `values`, in the order of the arenas:
 * float32, or bfloat16, whose rounding error stays in the residue. Counts bytes of values; the choosing rank counts
 * those of the choice. */
void gg_pack_values(const gg_packing *packing, const void *choice, gg_dtype dtype, float *residue, void *values);
/* out += factor*values, at their elements. */
void gg_unpack_values_add(const gg_packing *packing, const void *choice, gg_dtype dtype, const void *values,
                          float factor, float *out);

/* Counts the segments as sent dense (warm-up). */
void gg_compression_count_dense(const gg_segment *segment, int segments, gg_compression_counts *counts);

/* Counts bytes sent for this segment because of compression that carry no contribution: words in front of messages,
 * initial copies. */
void gg_compression_count_besides(const gg_segment *segment, size_t bytes, gg_compression_counts *counts);

#endif
