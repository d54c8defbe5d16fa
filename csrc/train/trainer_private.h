/* Private to the room: a trainer's fields. */
#ifndef GG_TRAIN_TRAINER_PRIVATE_H
#define GG_TRAIN_TRAINER_PRIVATE_H

#include "train/trainer.h"

struct gg_trainer {
    gg_peers *peers;
    gg_team *team; /* of the peers */
    int *died;     /* of the last gg_view_change, like the next */
    int64_t *last;
    gg_replica_options options; /* without an exchange */
    double *step_seconds;       /* one a rank of the team; NULL means none were given */
    int local;
    gg_replica **replica;
    gg_progress_counts inherited;   /* of this host's dead, which its first rank counts from the view's begin on */
    gg_conv_choice *conv_choices;   /* of all local ranks; NULL means that none are set */
    gg_table_choice *table_choices; /* likewise */
};

#endif
