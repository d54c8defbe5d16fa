/* Sets of elements, which are units in the end: a forest. */
#include "apoptosis/unit_search.h"
#include "base/memory.h"

int gg_elements_root(gg_unit_search *s, int at) {
    while (s->element[at].parent != at) at = s->element[at].parent = s->element[s->element[at].parent].parent;
    return at;
}

/* The smaller number stays the root, so that roots do not depend on the order of unions. */
void gg_elements_unite(gg_unit_search *s, int a, int b) {
    a = gg_elements_root(s, a);
    b = gg_elements_root(s, b);
    if (a == b) return;
    gg_unit_element *to = &s->element[a < b ? a : b], *from = &s->element[a < b ? b : a];
    from->parent = a < b ? a : b;
    to->members += from->members;
    if (to->fixed == NULL && (to->divided >= 0 || from->divided >= 0)) {
        to->fixed = "'%s' (%s) divides them into heads, which are joined with other values";
        to->blame = to->divided >= 0 ? to->divided : from->divided;
    }
    if (to->fixed == NULL) {
        to->fixed = from->fixed;
        to->blame = from->blame;
    }
    if (to->single == NULL) {
        to->single = from->single;
        to->single_blame = from->single_blame;
    }
}

void gg_element_fix(gg_unit_search *s, int at, int node, const char *why) {
    if (at < 0) return;
    gg_unit_element *root = &s->element[gg_elements_root(s, at)];
    if (root->fixed != NULL) return;
    root->fixed = why;
    root->blame = node;
}

void gg_outputs_fix(gg_unit_search *s, const gg_unit_outputs *of, int node, const char *why) {
    for (int i = 0; of->element != NULL && i < of->count; i++) gg_element_fix(s, of->element[i], node, why);
}

void gg_outputs_forbid_comparison(gg_unit_search *s, const gg_unit_outputs *of, int node, const char *why) {
    for (int i = 0; of->element != NULL && i < of->count; i++) {
        if (of->element[i] < 0) continue;
        gg_unit_element *root = &s->element[gg_elements_root(s, of->element[i])];
        if (root->single != NULL) continue;
        root->single = why;
        root->single_blame = node;
    }
}

gg_status gg_outputs_reserve(gg_unit_outputs *of, int axis, int64_t count) {
    of->axis = axis;
    of->count = (int)count;
    return gg_alloc((size_t)count * sizeof *of->element, "units", &of->element);
}

int gg_element_add(gg_unit_search *s, int node) {
    s->element[s->elements] = (gg_unit_element){
        .parent = s->elements, .node = node, .members = 1, .divided = -1, .blame = -1, .single_blame = -1};
    return s->elements++;
}
