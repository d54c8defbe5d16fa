/* Packed messages: AdaComp's choice of elements (compression.h), written into a message and added again elsewhere.
 *
 * Segments are given in the order of the arenas, a whole parameter each; arrays are given by their element 0, to which
 * the offsets of segments count. Nothing here allocates but a room. All calculations are in float32, without fused
 * products:
 *
 *     d = scale*g      G = R + d      H = G + (factor - 1)*d
 *
 * so all instruction sets choose the same elements and write the same bytes. The choice compares |H| with the greatest
 * |G| of the bin; ties are chosen. An element that is chosen but has G = 0 (possible through H) is not sent: it has no
 * sign. A bin whose G are all 0 sends nothing. The scale of a segment is the mean of gmax over all its bins, added in
 * double in the order of the bins and rounded to float32; where that is 0, nothing is sent. In mode SAFE what is chosen
 * is sent only where |G| >= scale/2.
 *
 * Segments with bin 0 are dense: all of R + d is sent as float32, and R becomes 0.
 *
 * ---- The message ----
 * Numbers are little-endian, and floats IEEE 754. Everything begins at a multiple of 4 bytes from the start; gaps are
 * zero.
 *
 *     header   16 bytes: "gP"; version, 1 byte (1); form, 1 byte; layout, 4 bytes: a hash of the segments (number,
 *              bins, sizes, relative offsets); 8 bytes: those of the whole message
 *     parts    one for each segment, in order
 *
 *     dense segment         its values, float32
 *     packed, form SCALE    4 bytes: bytes of codes; 4 bytes: the scale, float32; codes
 *     packed, form CHOICE   4 bytes: bytes of codes; 4 bytes: elements chosen; codes. Dense segments have no part.
 *     packed, form NARROW   the same; then one bfloat16 a chosen element, in order
 *     packed, form VALUES   the same; then one float32 a chosen element, in order
 *
 * Codes are units of 1 byte where the segment's bin has less than 64 elements, else of 2. The highest two bits are
 * flags, the rest is the place in the bin:
 *
 *     place                 one element. Highest bit: it is the first of its bin, which is the next one. Second: it is
 *                           negative (form SCALE; else 0). Places in a bin ascend.
 *     all ones, flags 0     the next bin is empty
 *     all ones, flags 1     the next 2 + n bins are, where n is the next unit
 *     all ones, flags 2     the next n bins are, where n is the next 4 bytes
 *
 * Bins behind the last that is mentioned are empty.
 *
 * ---- Who does what ----
 * Three entries of the backend's table compute: `pack` chooses from a parameter, leaves in the residue what is not sent
 * and gives places and values as lists in host memory; `add_elements` and `take_elements` add to elements of an arena
 * and take values from them. They know nothing of messages, and arenas are read and written by them alone, so these may
 * lie in memory of a device. The host does the rest: it makes the message of the lists, counts, and checks what
 * arrives; of a message that has been read it gives the device checked elements. On the CPU elements are added where
 * they are read. A message is complete, and its length is known, when the call that makes it returns: on a device it
 * waits for the lists. Messages and values lie in host memory that the device shares. */
#ifndef GG_EXCHANGE_CODEC_PACKED_H
#define GG_EXCHANGE_CODEC_PACKED_H

#include "exchange/codec/compression.h"
#include "ops/backend.h"

/* A part's elements at most, since its bytes are counted in 32 bits. */
#define GG_MOST_PACKED ((size_t)1 << 29)

/* Memory that packing works in. One packing or unpacking at a time; its content is lost between calls. */
typedef struct gg_pack_room gg_pack_room;

/* What the longest of several messages needs of a room; all zero: no message. */
typedef struct gg_pack_sizes {
    size_t segments, scratch, bins, places, elements;
} gg_pack_sizes;

void gg_pack_sizes_add(gg_pack_sizes *sizes, const gg_device *device, const gg_segment *segment, int segments);
gg_status gg_pack_room_create(gg_device *device, const gg_pack_sizes *sizes, gg_pack_room **out);
void gg_pack_room_destroy(gg_pack_room *room); /* waits for the device's work; NULL is fine */

/* What has been sent of some segments and is still in their residue, of modes STRICT and SAFE. */
typedef struct gg_pack_marks gg_pack_marks;

gg_status gg_pack_marks_create(const gg_segment *segment, int segments, gg_pack_marks **out);
void gg_pack_marks_destroy(gg_pack_marks *marks); /* NULL is fine */

typedef struct gg_packing {
    const gg_compression *compression; /* of what is packed */
    gg_device *device;
    const gg_segment *segment;
    int segments;
    gg_pack_room *room;            /* with room for these segments, and of this device */
    gg_compression_counts *counts; /* what is sent is added to it; NULL: not counted */
    /* NULL: none. Else it is called with runs of elements, whole lanes, that cover each segment once and in order,
     * before their gradient is read, and may write the gradient. On the CPU what it works on is still in cache then. It
     * gives NULL; or, on the CPU, where the gradient of the run lies instead, up to the next call. */
    const float *(*prepare)(void *context, size_t offset, size_t count);
    void *context;
    /* NULL: what gg_pack and gg_pack_and_clear send leaves the residue at once. Else, with these segments and always
     * the same residue: at the next of these calls, which reads the residue anyway, or with gg_pack_complete; with the
     * same bits. Not on a device with memory of its own. */
    gg_pack_marks *marks;
} gg_packing;

/* Bytes of the longest message that these segments can make, whatever its form. */
size_t gg_packed_capacity(const gg_segment *segment, int segments, const gg_compression *compression);

/* residue += scale*gradient; what is sent goes into `message`, of gg_packed_capacity bytes and aligned to 4, and leaves
 * the residue: residue + sent is exact, element by element, but for float32's rounding of R + d and of the remainder.
 * gradient NULL: zeros. *bytes: the message's. GG_ERROR_NUMERIC where G has NaN or an infinity: it names the segment's
 * place among those given, its name, and the element; the residue is then spoiled.
 * Mode EXACT gives form NARROW or VALUES; what bfloat16 loses stays in the residue. */
gg_status gg_pack(const gg_packing *packing, float scale, const float *gradient, float *residue, void *message,
                  size_t *bytes);

/* The same, and the segments' gradient becomes zero in the same pass over memory, also where it fails. */
gg_status gg_pack_and_clear(const gg_packing *packing, float scale, float *gradient, float *residue, void *message,
                            size_t *bytes);

/* What has been sent and is marked leaves the residue. */
void gg_pack_complete(const gg_packing *packing, float *residue);

/* gg_pack of a difference, where both sides hold a copy of what the receiver knows: G = value - known, H = factor*G
 * (so chosen is what has at least 1/factor of its bin's greatest difference), and known += what is sent, with the bits
 * that gg_unpack_add with factor 1 gives at the receiver. Dense segments send value - known. */
gg_status gg_pack_difference(const gg_packing *packing, const float *value, float *known, void *message, size_t *bytes);

/* Whether a message says that it is of these segments; of its parts nothing is checked. */
bool gg_packed_fits(const gg_segment *segment, int segments, const void *message, size_t bytes);

/* out += factor*what the message says: the product is rounded, then the sum. GG_ERROR_COMM says what is wrong with a
 * message that is not whole, or not of these segments; parts before the wrong one may have been added then, and nothing
 * outside of the segments is ever written, whatever the bytes. `message` is aligned to 4, any host memory, and no
 * longer read when the call returns. */
gg_status gg_unpack_add(const gg_packing *packing, const void *message, size_t bytes, float factor, float *out);

/* ---- Sums in pieces ---- */

/* GG_ERROR_COMM as from gg_unpack_add; adds nothing. */
gg_status gg_packed_check(const gg_packing *packing, const void *message, size_t bytes);

/* Memory for a sum in pieces of so many messages at most, of these segments. */
typedef struct gg_pack_pieces gg_pack_pieces;

gg_status gg_pack_pieces_create(const gg_device *device, const gg_segment *segment, int segments, int messages,
                                gg_pack_pieces **out);
void gg_pack_pieces_destroy(gg_pack_pieces *pieces); /* NULL is fine */

typedef void gg_pack_piece(void *context, size_t offset, size_t count, const float *sum, gg_lines filled);

/* Where a sum is read once, it need not be an array of all elements, most of which are zero: `piece` is called with the
 * sum of the messages, run by run in the order of the segments, each whole lanes, with zeros behind a parameter's end.
 * They have the bits of gg_unpack_add with factor 1, message after message, to zeros. The messages are of this
 * packing's segments, have passed gg_packed_check, and lie in host memory; `sum` and its filled lines are valid during
 * the call. later: segments that are left out, one a segment; NULL: none. Not on a device with memory of its own. */
void gg_unpack_pieces(const gg_packing *packing, gg_pack_pieces *pieces, const void *const *message, int messages,
                      const bool *later, gg_pack_piece *piece, void *context);

/* The same of one segment, in as many calls as its reader likes: begin, then up_to with growing numbers of elements,
 * which passes on those that have not been, to whole lanes. The messages stay as they are up to the last. */
void gg_unpack_begin(const gg_packing *packing, gg_pack_pieces *pieces, const void *const *message, int messages,
                     int which);
void gg_unpack_up_to(const gg_packing *packing, gg_pack_pieces *pieces, int which, size_t count, gg_pack_piece *piece,
                     void *context);

/* ---- One rank chooses for all ---- */

/* residue += scale*gradient in all segments, dense ones too; writes which elements are chosen, and leaves them in the
 * residue. The choice is that of `mode` STRICT, or SAFE. */
gg_status gg_pack_choice(const gg_packing *packing, float scale, const float *gradient, float *residue, void *choice,
                         size_t *bytes);
/* residue += scale*gradient in all segments: what the ranks do that do not choose. Checks as gg_pack does. */
gg_status gg_pack_accumulate(const gg_packing *packing, float scale, const float *gradient, float *residue);
/* How many values belong to a choice, those of dense segments included. Checks all of the message: it is called before
 * the next two, which trust it. */
gg_status gg_choice_values(const gg_segment *segment, int segments, const void *choice, size_t bytes, size_t *values);
/* Moves the residue's values at the chosen elements, and those of dense segments, to `values`, in the order of the
 * arenas: float32, or bfloat16, whose rounding stays in the residue. Counts bytes of values; those of the choice are
 * counted by who wrote it. */
void gg_pack_values(const gg_packing *packing, const void *choice, gg_dtype dtype, float *residue, void *values);
/* out += factor*values, at their places. */
void gg_unpack_values_add(const gg_packing *packing, const void *choice, gg_dtype dtype, const void *values,
                          float factor, float *out);

/* Counts the segments as sent dense (warm-up). */
void gg_compression_count_dense(const gg_segment *segment, int segments, gg_compression_counts *counts);

/* Counts bytes that are sent because of compression, for this segment, and are no form of what is contributed: words in
 * front of messages, what copies begin with. */
void gg_compression_count_besides(const gg_segment *segment, size_t bytes, gg_compression_counts *counts);

#endif
