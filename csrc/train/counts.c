/* A replica's counts for the report: steps and losses as the device completes them, and the counts of the exchange and
 * the ring. */
#include "train/ledger.h"
#include "train/replica_private.h"

gg_status gg_replica_read_step(gg_replica *r, int most, const gg_outstanding_step **out) {
    const gg_status status = gg_outstanding_read(&r->outstanding, most, out);
    (void)gg_exchange_fail(r->exchange, status);
    if (status == GG_OK && *out != NULL) gg_replica_record_gpu(r, *out);
    return status;
}

double gg_replica_step_loss(const gg_replica *r, const gg_outstanding_step *step, int64_t samples) {
    return gg_heads_total_loss(r->options.head, gg_graph_heads(r->options.graph), step->sums, samples);
}

gg_status gg_replica_count_steps(gg_replica *r, int most) {
    const gg_outstanding_step *done = NULL;
    for (;;) {
        GG_TRY(gg_replica_read_step(r, most, &done));
        if (done == NULL) break;
        if (!done->counted) continue;
        r->counts.steps++;
        r->counts.samples += done->samples;
        if (done->samples > 0) {
            r->counts.loss_sum += gg_replica_step_loss(r, done, done->samples);
            r->counts.correct += done->sums[0].correct;
            r->counts.counted += done->sums[0].counted;
        }
        gg_replica_tell_counts(r, done->step + 1);
    }
    return GG_OK;
}

gg_other_counts gg_replica_other_counts(const gg_replica *r) {
    gg_other_counts now = {0};
    gg_exchange_counted(r->exchange, &now.exchange);
    if (r->data.ring != NULL) gg_sample_ring_sent(r->data.ring, &now.sample_bytes, &now.sample_messages);
    return now;
}

void gg_replica_counts(const gg_replica *r, gg_progress_counts *out) {
    const gg_other_counts all = gg_replica_other_counts(r);
    const gg_exchange_counts *now = &all.exchange, *before = &r->before.exchange;
    gg_state *state = gg_exchange_state(r->exchange);
    const int64_t sample_bytes = all.sample_bytes - r->before.sample_bytes;
    const int64_t sample_messages = all.sample_messages - r->before.sample_messages;
    *out = r->counts;
    out->exposed_seconds += now->exposed_seconds - before->exposed_seconds;
    out->compute_seconds = out->clock_seconds - out->exposed_seconds - out->data_seconds;
    out->sample_bytes_sent += sample_bytes;
    out->sample_messages_sent += sample_messages;
    out->bytes_sent += now->bytes - before->bytes - sample_bytes;
    out->messages_sent += now->messages - before->messages - sample_messages;
    out->skipped += now->skipped - before->skipped;
    out->optimizer_bytes = gg_state_moment_bytes(state, false);
    out->optimizer_bytes_saved = gg_state_moment_bytes(state, true) - out->optimizer_bytes;
    if (!gg_exchange_compresses(r->exchange)) return;
    gg_compression_counts sent = now->compression;
    gg_compression_counts_subtract(&sent, &before->compression);
    gg_compression_counts_add(&out->compression, &sent);
    out->compresses = 1;
}

void gg_replica_tell_counts(const gg_replica *r, int64_t made) {
    gg_ledger_entry entry = {.epoch = r->data.epoch, .view = r->view, .made = made};
    if (r->options.ledger == NULL) return;
    gg_replica_counts(r, &entry.counts);
    gg_ledger_write(r->options.ledger, &entry);
}

void gg_replica_set_counts(gg_replica *r, const gg_progress_counts *counts) {
    r->counts = *counts;
    r->before = gg_replica_other_counts(r);
    gg_replica_tell_counts(r, *r->data.step);
}

void gg_progress_counts_add(gg_progress_counts *counts, const gg_progress_counts *more) {
    counts->samples += more->samples;
    counts->correct += more->correct;
    counts->counted += more->counted;
    counts->loss_sum += more->loss_sum;
    counts->bytes_sent += more->bytes_sent;
    counts->messages_sent += more->messages_sent;
    counts->skipped += more->skipped;
    gg_compression_counts_add(&counts->compression, &more->compression);
}
