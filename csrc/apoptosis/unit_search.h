/* Private to the room: what is known of units while they are looked for.
 *
 * unit_elements.c: sets of outputs of layers. unit_follow.c: which of them a node's output consists of. unit_groups.c:
 * units of these sets, and where the parameters have them. One thread. */
#ifndef GG_APOPTOSIS_UNIT_SEARCH_H
#define GG_APOPTOSIS_UNIT_SEARCH_H

#include "apoptosis/units.h"

/* While they are looked for, an output of a layer is an element, and a unit is a set of elements: a forest, in which
 * each element knows its parent, and the roots know of the whole set. */
typedef struct gg_unit_element {
    int parent, node;
    int members;       /* of the set, at its root */
    int divided;       /* the set is a head of this node's attention; -1: it is not */
    int blame;         /* the node because of which its set is fixed or single; -1: it is not */
    const char *fixed; /* a format with the name and kind of that node */
    int single_blame;
    const char *single;
} gg_unit_element;

/* Of a node's output. */
typedef struct gg_unit_outputs {
    int axis; /* along which the elements lie; -1: nothing in it can leave */
    int count;
    int *element; /* one an index; -1: cannot leave. NULL: none of them can */
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
    int *readers;         /* one a node: how many nodes read it, and heads */
    gg_units *made;       /* unfinished */
} gg_unit_search;

/* ---- unit_elements.c ---- */

int gg_elements_root(gg_unit_search *s, int at); /* of the set that this element is in */
void gg_elements_unite(gg_unit_search *s, int a, int b);
int gg_element_add(gg_unit_search *s, int node); /* a set of its own; there is room for it */
/* Cannot leave because of a node; `why` is a format with its name and kind. at: -1 is fine. */
void gg_element_fix(gg_unit_search *s, int at, int node, const char *why);
void gg_outputs_fix(gg_unit_search *s, const gg_unit_outputs *of, int node, const char *why);
void gg_outputs_forbid_comparison(gg_unit_search *s, const gg_unit_outputs *of, int node, const char *why);
gg_status gg_outputs_reserve(gg_unit_outputs *of, int axis, int64_t count);

/* ---- unit_follow.c ---- */

/* What the node's output consists of; those of its inputs are there. */
gg_status gg_outputs_follow(gg_unit_search *s, int node);
bool gg_layer_is_producer(gg_layer_kind kind); /* its outputs are units of its own */
/* Whether a layer with weights can be followed to what it reads: the axis on which it sums. */
bool gg_outputs_are_read(gg_unit_search *s, int node);
gg_unit_rule gg_unit_rule_weaker(gg_unit_rule a, gg_unit_rule b); /* what carries through both */
/* How many windows hold one element at most. */
double gg_windows_of_element(const gg_window *window);

/* ---- unit_groups.c ---- */

/* The groups of the sets, their readers, and the units of each node and parameter. */
gg_status gg_units_finish(gg_unit_search *s);

#endif
