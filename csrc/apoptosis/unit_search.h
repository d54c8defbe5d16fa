/* Private to the room: the state of the search for units.
 *
 * unit_elements.c: sets of outputs of layers. unit_follow.c: the outputs that a node's output consists of.
 * unit_groups.c: units from these sets, and their places in parameters. One thread. */
#ifndef GG_APOPTOSIS_UNIT_SEARCH_H
#define GG_APOPTOSIS_UNIT_SEARCH_H

#include "apoptosis/units.h"

/* During the search an output of a layer is an element, and a unit is a set of elements: a forest. Each element knows
 * its parent, and the root knows the whole set. */
typedef struct gg_unit_element {
    int parent, node;
    int members;       /* in the set, at its root */
    int divided;       /* the set is a head of this node's attention; -1 means none */
    int blame;         /* the node that makes the set fixed; -1 means none */
    const char *fixed; /* a format with the name and kind of that node */
    int single_blame;
    const char *single;
} gg_unit_element;

/* The units in a node's output. */
typedef struct gg_unit_outputs {
    int axis; /* axis of the elements; -1 means that none can leave */
    int count;
    int *element; /* one an index; -1 means that it cannot leave. NULL means that none can */
    gg_unit_rule rule;
    gg_layer_kind activation;
    float slope;
    double gain;
    bool constants;
} gg_unit_outputs;

typedef struct gg_unit_search {
    const gg_graph *graph;
    gg_unit_element *element;
    int elements;
    gg_unit_outputs *out; /* one a node */
    int *heads;           /* one a node: the element of a MULTI_HEAD's first head */
    int *readers;         /* one a node: number of nodes and heads that read it */
    gg_units *made;       /* unfinished */
} gg_unit_search;

/* ---- unit_elements.c ---- */

int gg_elements_root(gg_unit_search *s, int at); /* root of this element's set */
void gg_elements_unite(gg_unit_search *s, int a, int b);
int gg_element_add(gg_unit_search *s, int node); /* starts a set; there is room for the element */
/* Marks an element as fixed because of a node; `why` is a format with the node's name and kind. at -1 is a no-op. */
void gg_element_fix(gg_unit_search *s, int at, int node, const char *why);
void gg_outputs_fix(gg_unit_search *s, const gg_unit_outputs *of, int node, const char *why);
void gg_outputs_forbid_comparison(gg_unit_search *s, const gg_unit_outputs *of, int node, const char *why);
gg_status gg_outputs_reserve(gg_unit_outputs *of, int axis, int64_t count);

/* ---- unit_follow.c ---- */

/* Finds the units in a node's output. Those of its inputs are known. */
gg_status gg_outputs_follow(gg_unit_search *s, int node);
bool gg_layer_is_producer(gg_layer_kind kind); /* its outputs are units of its own */
/* True if the units that a layer with weights reads lie on the axis of its sums. */
bool gg_outputs_are_read(gg_unit_search *s, int node);
gg_unit_rule gg_unit_rule_weaker(gg_unit_rule a, gg_unit_rule b); /* the rule that holds through both */
/* Max number of windows that hold one element. */
double gg_windows_of_element(const gg_window *window);

/* ---- unit_groups.c ---- */

/* Makes groups of the sets, their readers, and the units of each node and parameter. */
gg_status gg_units_finish(gg_unit_search *s);

#endif
