/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling: penalties, biases, temperature, top-k, top-p, min-p, then one draw, in this order.
 *
 * Nothing is sorted. Tokens have a total order: the higher logit first, the smaller number among equals. Each
 * filter keeps a head of that order, so each is found as a threshold by quickselect, and the draw walks what
 * is left in the order of token numbers: the result depends on logits, parameters and seed alone.
 *
 * `sampler_twin.py` is the same in numpy.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sampler.cdef"

/* Weights below e^-64 of the best one's cannot be met by a draw of 53 bits. */
#define NEGLIGIBLE 64.0f
#define FEW 128

typedef struct {
    float logit;
    int32_t token;
    double weight;
} candidate;

typedef struct {
    int32_t token, seen, generated;
    float bias;
    float logit; /* of the row, while it is changed */
} noted;

struct sy_sampler {
    sy_sampling how;
    int32_t n_vocab;
    uint64_t state[4];
    candidate *kept, *work; /* room for n_vocab each, from the first draw on */
    int32_t *slot;          /* token -> index in notes, plus 1; once there are notes */
    noted *notes;
    int32_t n_notes, room;
};

/* splitmix64, to spread a seed over the state of xoshiro256++ (both Blackman and Vigna, public domain). */
static uint64_t spread(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotate_left(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

static double draw(uint64_t s[4]) /* [0, 1) */
{
    uint64_t result = rotate_left(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return (double)(result >> 11) * 0x1p-53;
}

sy_sampler *sy_sampler_new(int32_t n_vocab, const sy_sampling *how)
{
    sy_sampler *s = calloc(1, sizeof *s);
    if (s == NULL || n_vocab <= 0) {
        free(s);
        return NULL;
    }
    s->how = *how;
    s->n_vocab = n_vocab;
    uint64_t seed = how->seed;
    for (int i = 0; i < 4; i++)
        s->state[i] = spread(&seed);
    return s;
}

void sy_sampler_free(sy_sampler *s)
{
    if (s == NULL)
        return;
    free(s->kept);
    free(s->work);
    free(s->slot);
    free(s->notes);
    free(s);
}

/* The note of a token, made if need be; NULL for no memory or a token out of range. */
static noted *note_of(sy_sampler *s, int32_t token)
{
    if (token < 0 || token >= s->n_vocab)
        return NULL;
    if (s->slot == NULL && (s->slot = calloc((size_t)s->n_vocab, sizeof *s->slot)) == NULL)
        return NULL;
    if (s->slot[token] == 0) {
        if (s->n_notes == s->room) {
            int32_t room = s->room ? 2 * s->room : 256;
            noted *notes = realloc(s->notes, (size_t)room * sizeof *notes);
            if (notes == NULL)
                return NULL;
            s->notes = notes;
            s->room = room;
        }
        s->notes[s->n_notes] = (noted){.token = token};
        s->slot[token] = ++s->n_notes;
    }
    return &s->notes[s->slot[token] - 1];
}

int sy_sampler_accept(sy_sampler *s, const int32_t *tokens, int32_t n, int generated)
{
    if (s->how.repetition == 1 && s->how.presence == 0 && s->how.frequency == 0)
        return 0;
    for (int32_t i = 0; i < n; i++) {
        noted *note = note_of(s, tokens[i]);
        if (note == NULL)
            return -1;
        note->seen = 1;
        note->generated += generated != 0;
    }
    return 0;
}

int sy_sampler_bias(sy_sampler *s, int32_t token, float bias)
{
    noted *note = note_of(s, token);
    if (note == NULL)
        return -1;
    note->bias += bias;
    return 0;
}

static void penalize(sy_sampler *s, float *logits)
{
    const sy_sampling *how = &s->how;
    for (int32_t i = 0; i < s->n_notes; i++) {
        noted *note = &s->notes[i];
        float logit = note->logit = logits[note->token];
        if (note->seen)
            logit = logit > 0 ? logit / how->repetition : logit * how->repetition;
        if (note->generated)
            logit -= how->presence + how->frequency * (float)note->generated;
        logits[note->token] = logit + note->bias;
    }
}

static int before(const candidate *a, const candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

static void swap(candidate *a, candidate *b)
{
    candidate c = *a;
    *a = *b;
    *b = c;
}

/* The last of the fewest candidates, taken in order, that weigh `need` together. Moves them about. */
static candidate select_mass(candidate *c, int32_t n, double need)
{
    uint32_t where = 1;
    int32_t low = 0, high = n;
    candidate last = c[0];
    if (!(need > 0))
        need = DBL_MIN; /* there is always one */
    while (low < high) {
        where = where * 1664525u + 1013904223u; /* any spread of pivots does: the order is not the caller's */
        swap(&c[low + (int32_t)(((uint64_t)where * (uint32_t)(high - low)) >> 32)], &c[high - 1]);
        candidate pivot = c[high - 1];
        int32_t at = low;
        double mass = 0;
        for (int32_t i = low; i < high - 1; i++)
            if (before(&c[i], &pivot)) {
                mass += c[i].weight;
                swap(&c[i], &c[at++]);
            }
        if (mass >= need) {
            high = at;
            continue;
        }
        swap(&c[at], &c[high - 1]);
        need -= mass + pivot.weight;
        last = pivot;
        if (need <= 0)
            break;
        low = at + 1;
    }
    return last;
}

/* The k-th candidate in order, for a small k: most of the many fail the one comparison. */
static candidate select_few(const candidate *from, int32_t n, candidate *c, int32_t k)
{
    int32_t have = 0;
    for (int32_t i = 0; i < n; i++) {
        if (have == k && !before(&from[i], &c[k - 1]))
            continue;
        int32_t at = have < k ? have++ : k - 1;
        for (; at > 0 && before(&from[i], &c[at - 1]); at--)
            c[at] = c[at - 1];
        c[at] = from[i];
    }
    return c[k - 1];
}

/* Keep the head of the order that weighs `need`, in the order of tokens; `few` when all weigh 1. */
static int32_t keep(sy_sampler *s, int32_t n, double need, int few)
{
    candidate last;
    if (few && need <= FEW) {
        last = select_few(s->kept, n, s->work, (int32_t)need);
    } else {
        memcpy(s->work, s->kept, (size_t)n * sizeof *s->work);
        last = select_mass(s->work, n, need);
    }
    int32_t left = 0;
    for (int32_t i = 0; i < n; i++)
        if (!before(&last, &s->kept[i]))
            s->kept[left++] = s->kept[i];
    return left;
}

static int32_t choose(sy_sampler *s, const float *logits)
{
    const sy_sampling *how = &s->how;
    int32_t best = -1;
    float most = -INFINITY;
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (logits[i] > most) { /* false for NaN */
            most = logits[i];
            best = i;
        }
    if (best < 0 || !isfinite(most))
        return -1;
    if (!(how->temperature > 0))
        return best;

    if (s->kept == NULL) {
        s->kept = malloc((size_t)s->n_vocab * sizeof *s->kept);
        s->work = malloc((size_t)s->n_vocab * sizeof *s->work);
        if (s->kept == NULL || s->work == NULL) {
            free(s->kept);
            free(s->work);
            s->kept = s->work = NULL;
            return -1;
        }
    }
    float temperature = how->temperature, floor = most - NEGLIGIBLE * temperature;
    candidate *kept = s->kept;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (logits[i] >= floor)
            kept[n++] = (candidate){logits[i], i, 1};
    if (how->top_k > 0 && how->top_k < n)
        n = keep(s, n, how->top_k, 1);
    double total = 0;
    for (int32_t i = 0; i < n; i++) {
        kept[i].weight = expf((kept[i].logit - most) / temperature);
        total += kept[i].weight;
    }
    if (how->top_p < 1)
        n = keep(s, n, how->top_p * total, 0);
    if (how->min_p > 0) {
        int32_t left = 0;
        for (int32_t i = 0; i < n; i++)
            if (kept[i].weight >= how->min_p || kept[i].token == best)
                kept[left++] = kept[i];
        n = left;
    }
    total = 0;
    for (int32_t i = 0; i < n; i++)
        total += kept[i].weight;
    double point = draw(s->state) * total;
    for (int32_t i = 0; i < n; i++) {
        point -= kept[i].weight;
        if (point < 0)
            return kept[i].token;
    }
    return best; /* rounding ate the last bit */
}

int32_t sy_sampler_sample(sy_sampler *s, float *logits)
{
    penalize(s, logits);
    int32_t token = choose(s, logits);
    for (int32_t i = 0; i < s->n_notes; i++)
        logits[s->notes[i].token] = s->notes[i].logit;
    return token;
}

int32_t sy_logprobs(const float *logits, int32_t n_vocab, int32_t token, float *logprob, int32_t most, int32_t *tokens,
                    float *logprobs)
{
    float peak = -INFINITY;
    for (int32_t i = 0; i < n_vocab; i++)
        if (logits[i] > peak)
            peak = logits[i];
    if (!isfinite(peak) || token < 0 || token >= n_vocab)
        return -1;
    double total = 0;
    int32_t have = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        float logit = logits[i];
        if (!(logit > -INFINITY)) /* nor NaN */
            continue;
        total += expf(logit - peak);
        if (most == 0 || (have == most && !(logit > logprobs[most - 1])))
            continue;
        int32_t at = have < most ? have++ : most - 1;
        for (; at > 0 && logit > logprobs[at - 1]; at--) {
            logprobs[at] = logprobs[at - 1];
            tokens[at] = tokens[at - 1];
        }
        logprobs[at] = logit;
        tokens[at] = i;
    }
    double base = log(total), high = peak;
    for (int32_t i = 0; i < have; i++)
        logprobs[i] = (float)(logprobs[i] - high - base);
    *logprob = logits[token] > -INFINITY ? (float)(logits[token] - high - base) : -INFINITY;
    return have;
}
