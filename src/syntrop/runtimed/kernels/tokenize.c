/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies: open addressing over the strings of a file, byte-pair merging with a heap, unigram by Viterbi.
 *
 * A vocabulary of 262,144 tokens is hashed in a few milliseconds, where objects of the interpreter for each
 * string and number took half a second. `merging.py` is the same merging in Python.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenize.cdef"

#define FEW 64   /* symbols that are merged without memory from the heap */
#define AHEAD 32 /* strings whose places are fetched before they are filled */

struct sy_words {
    const uint8_t *data;
    uint64_t salt;
    uint64_t mask;
    uint64_t *slots; /* upper half of the hash, and index + 1; 0: free */
    uint32_t *start; /* of each string's bytes; its length lies before them */
    uint32_t count, longest, longest_bytes;
    int separator;
};

static uint64_t load64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* --- strings ---------------------------------------------------------------------------------------------- */

/* UTF-8 as RFC 3629 has it: nothing overlong, no surrogates, nothing beyond U+10FFFF. */
static int is_utf8(const uint8_t *text, uint64_t length)
{
    uint64_t at = 0;
    while (at < length) {
        if (at + 8 <= length && !(load64(text + at) & 0x8080808080808080u)) {
            at += 8;
            continue;
        }
        uint8_t lead = text[at];
        if (lead < 0x80) {
            at++;
            continue;
        }
        int more = lead >= 0xc2 && lead < 0xe0 ? 1 : lead >= 0xe0 && lead < 0xf0 ? 2
                 : lead >= 0xf0 && lead < 0xf5 ? 3 : 0;
        if (!more || length - at <= (uint64_t)more)
            return 0;
        uint8_t second = text[at + 1];
        if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90)
            || (lead == 0xf4 && second > 0x8f))
            return 0;
        for (int i = 1; i <= more; i++)
            if ((text[at + i] & 0xc0) != 0x80)
                return 0;
        at += 1 + more;
    }
    return 1;
}

uint64_t sy_strings_end(const uint8_t *data, uint64_t size, uint64_t at, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (at > size || size - at < 8)
            return 0;
        uint64_t length = load64(data + at);
        at += 8;
        if (length > size - at || !is_utf8(data + at, length))
            return 0;
        at += length;
    }
    return at;
}

/* --- the table -------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash(const uint8_t *text, uint64_t length, uint64_t salt)
{
    uint64_t h = salt ^ (length * 0x9e3779b97f4a7c15u), last = 0;
    for (; length > 8; length -= 8, text += 8)
        h = mix(h ^ load64(text), 0xd6e8feb86659fd93u);
    if (length >= 4)
        last = load32(text) | (uint64_t)load32(text + length - 4) << 32;
    else if (length)
        last = text[0] | (uint64_t)text[length >> 1] << 8 | (uint64_t)text[length - 1] << 16;
    return mix(h ^ last, 0xa0761d6478bd642fu) | 1;
}

static uint64_t hash_pair(uint64_t left, uint64_t right)
{
    return mix(left ^ 0x8ebc6af09c88c6e3u, right + left) | 1;
}

static uint64_t length_at(const sy_words *words, uint32_t index)
{
    return load64(words->data + words->start[index] - 8);
}

/* Where the right side of a pair begins; 0: this is no pair. A left side may begin with the separator. */
static uint64_t right_side(const sy_words *words, const uint8_t *text, uint64_t length)
{
    if (length < 2)
        return 0;
    const uint8_t *found = memchr(text + 1, words->separator, length - 1);
    return found ? (uint64_t)(found - text) + 1 : 0;
}

static void insert(sy_words *words, uint32_t index, uint64_t h)
{
    const uint8_t *text = words->data + words->start[index];
    uint64_t length = length_at(words, index);
    for (uint64_t slot = h >> 1 & words->mask;; slot = (slot + 1) & words->mask) {
        uint64_t taken = words->slots[slot];
        if (taken && taken >> 32 == h >> 32) {
            uint32_t other = (uint32_t)taken - 1;
            if (length_at(words, other) != length || memcmp(words->data + words->start[other], text, length))
                continue;
        } else if (taken) {
            continue;
        }
        words->slots[slot] = (h >> 32 << 32) | (index + 1);
        return;
    }
}

/* The hash of a string, or 0 for what is no pair where pairs are wanted; no hash is 0. */
static uint64_t measured(sy_words *words, uint32_t index)
{
    const uint8_t *text = words->data + words->start[index];
    uint64_t length = length_at(words, index), salt = words->salt;
    if (words->separator) {
        uint64_t right = right_side(words, text, length);
        return right ? hash_pair(hash(text, right - 1, salt), hash(text + right, length - right, salt)) : 0;
    }
    uint32_t characters = 0;
    for (uint64_t i = 0; i < length; i++)
        characters += (text[i] & 0xc0) != 0x80;
    if (characters > words->longest)
        words->longest = characters;
    if (length > words->longest_bytes)
        words->longest_bytes = (uint32_t)length;
    return hash(text, length, salt);
}

void sy_words_free(sy_words *words)
{
    if (words) {
        free(words->slots);
        free(words->start);
        free(words);
    }
}

sy_words *sy_words_new(const uint8_t *data, uint64_t size, uint32_t count, int separator, uint64_t salt)
{
    if (size > UINT32_MAX || count > UINT32_MAX / 4)
        return NULL;
    sy_words *words = calloc(1, sizeof *words);
    if (!words)
        return NULL;
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)count)
        slots *= 2;
    words->data = data;
    words->salt = salt;
    words->mask = slots - 1;
    words->separator = separator;
    words->slots = calloc(slots, sizeof *words->slots);
    words->start = malloc((count + (uint64_t)1) * sizeof *words->start);
    if (!words->slots || !words->start) {
        sy_words_free(words);
        return NULL;
    }
    uint64_t at = 0, hashes[AHEAD];
    for (uint32_t first = 0; first < count; first += AHEAD) {
        uint32_t end = count - first < AHEAD ? count : first + AHEAD;
        for (uint32_t i = first; i < end; i++) {
            if (size - at < 8 || load64(data + at) > size - at - 8) {
                sy_words_free(words);
                return NULL;
            }
            words->start[i] = (uint32_t)(at + 8);
            words->count = i + 1;
            at += 8 + load64(data + at);
            hashes[i - first] = measured(words, i);
            __builtin_prefetch(&words->slots[hashes[i - first] >> 1 & words->mask], 1);
        }
        for (uint32_t i = first; i < end; i++)
            if (hashes[i - first])
                insert(words, i, hashes[i - first]);
    }
    return words;
}

uint32_t sy_words_longest(const sy_words *words) { return words->longest; }

uint32_t sy_words_longest_bytes(const sy_words *words) { return words->longest_bytes; }

const uint8_t *sy_words_at(const sy_words *words, uint32_t index, uint64_t *length)
{
    if (index >= words->count)
        return NULL;
    *length = length_at(words, index);
    return words->data + words->start[index];
}

static int32_t find(const sy_words *words, const uint8_t *text, uint64_t length, uint64_t h)
{
    for (uint64_t slot = h >> 1 & words->mask; words->slots[slot]; slot = (slot + 1) & words->mask) {
        uint64_t taken = words->slots[slot];
        if (taken >> 32 != h >> 32)
            continue;
        uint32_t index = (uint32_t)taken - 1;
        if (length_at(words, index) == length && !memcmp(words->data + words->start[index], text, length))
            return (int32_t)index;
    }
    return -1;
}

int32_t sy_words_find(const sy_words *words, const uint8_t *text, uint64_t length)
{
    return find(words, text, length, hash(text, length, words->salt));
}

/* --- merging ---------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    uint32_t start, length; /* a symbol that was joined to its left neighbour has no length */
    uint32_t before, after; /* UINT32_MAX: none */
} symbol;

typedef struct {
    uint64_t key;    /* cost, then place: the leftmost first among equals */
    uint32_t length; /* of both together; the entry is stale when they have changed */
} entry;

typedef struct {
    const sy_words *tokens, *merges;
    const float *scores;
    const uint8_t *text;
    symbol *symbols;
    entry *heap;
    uint32_t waiting;
} session;

/* Merges and tokens are hashed with salts of their own. */
static uint64_t symbol_hash(const session *s, uint32_t start, uint32_t length)
{
    return hash(s->text + start, length, (s->merges ? s->merges : s->tokens)->salt);
}

/* Floats in descending order as integers in ascending order. */
static uint32_t descending(float score)
{
    uint32_t bits;
    score = -score + 0.0f; /* one zero */
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static int cost(const session *s, const symbol *left, const symbol *right, uint32_t *result)
{
    const uint8_t *text = s->text + left->start;
    if (!s->merges) {
        uint32_t length = left->length + right->length;
        if (length > s->tokens->longest_bytes)
            return 0;
        int32_t token = find(s->tokens, text, length, symbol_hash(s, left->start, length));
        if (token >= 0)
            *result = descending(s->scores[token]);
        return token >= 0;
    }
    const sy_words *merges = s->merges;
    uint64_t h = hash_pair(left->hash, right->hash);
    uint64_t length = (uint64_t)left->length + 1 + right->length;
    for (uint64_t slot = h >> 1 & merges->mask; merges->slots[slot]; slot = (slot + 1) & merges->mask) {
        uint64_t taken = merges->slots[slot];
        if (taken >> 32 != h >> 32)
            continue;
        uint32_t index = (uint32_t)taken - 1;
        const uint8_t *pair = merges->data + merges->start[index];
        if (length_at(merges, index) == length && pair[left->length] == merges->separator
            && !memcmp(pair, text, left->length)
            && !memcmp(pair + left->length + 1, s->text + right->start, right->length)) {
            *result = index;
            return 1;
        }
    }
    return 0;
}

static void push(session *s, uint32_t left, uint32_t right)
{
    uint32_t value;
    if (left == UINT32_MAX || right == UINT32_MAX || !cost(s, &s->symbols[left], &s->symbols[right], &value))
        return;
    entry added = {(uint64_t)value << 32 | left, s->symbols[left].length + s->symbols[right].length};
    uint32_t at = s->waiting++;
    while (at) {
        uint32_t parent = (at - 1) / 2;
        if (s->heap[parent].key <= added.key)
            break;
        s->heap[at] = s->heap[parent];
        at = parent;
    }
    s->heap[at] = added;
}

static entry pop(session *s)
{
    entry least = s->heap[0], last = s->heap[--s->waiting];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= s->waiting)
            break;
        if (child + 1 < s->waiting && s->heap[child + 1].key < s->heap[child].key)
            child++;
        if (last.key <= s->heap[child].key)
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return least;
}

static uint32_t character(const uint8_t *text, uint64_t left)
{
    uint32_t length = *text < 0xc0 ? 1 : *text < 0xe0 ? 2 : *text < 0xf0 ? 3 : 4;
    return length < left ? length : (uint32_t)left;
}

/* Every merge pushes two entries at most. */
static void join_all(session *s)
{
    while (s->waiting) {
        entry next = pop(s);
        uint32_t at = (uint32_t)next.key;
        symbol *left = &s->symbols[at];
        if (!left->length || left->after == UINT32_MAX)
            continue;
        symbol *right = &s->symbols[left->after];
        if (left->length + right->length != next.length)
            continue;
        left->length = next.length;
        right->length = 0;
        left->after = right->after;
        if (left->after != UINT32_MAX)
            s->symbols[left->after].before = at;
        if (s->merges)
            left->hash = symbol_hash(s, left->start, left->length);
        push(s, left->before, at);
        push(s, at, left->after);
    }
}

static int64_t write_symbol(const session *s, const symbol *one, const int32_t *bytes, int32_t *out)
{
    const uint8_t *text = s->text + one->start;
    int32_t token = sy_words_find(s->tokens, text, one->length);
    if (token >= 0) {
        *out = token;
        return 1;
    }
    int64_t written = 0;
    for (uint32_t at = 0, step; at < one->length; at += step) {
        step = bytes ? 1 : character(text + at, one->length - at);
        token = bytes ? bytes[text[at]] : sy_words_find(s->tokens, text + at, step);
        if (token >= 0)
            out[written++] = token;
    }
    return written;
}

/* Printable Latin-1 bytes stand for themselves, the others follow from U+0100 on. */
static uint32_t byte_character(uint8_t byte)
{
    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad))
        return byte;
    return 0x100 + (byte <= 0x20 ? byte : byte == 0xad ? 0x43u : byte - 0x7fu + 0x21u);
}

static uint32_t spell(const uint8_t *text, uint32_t length, uint8_t *out)
{
    uint32_t size = 0;
    for (uint32_t i = 0; i < length; i++) {
        uint32_t code = byte_character(text[i]);
        if (code < 0x80) {
            out[size++] = (uint8_t)code;
        } else {
            out[size++] = (uint8_t)(0xc0 | code >> 6);
            out[size++] = (uint8_t)(0x80 | (code & 0x3f));
        }
    }
    return size;
}

int64_t sy_merge(const sy_words *tokens, const sy_words *merges, const float *scores, const int32_t *bytes,
                 int flags, const uint8_t *text, uint64_t length, int32_t *out)
{
    if (!length)
        return 0;
    if (length > UINT32_MAX / 8)
        return -1;
    symbol few_symbols[FEW];
    entry few_entries[3 * FEW];
    uint8_t few_bytes[2 * FEW];
    session s = {tokens, merges, scores, text, few_symbols, few_entries, 0};
    uint8_t *spelled = few_bytes;
    int64_t written = -1;
    if (length > FEW) {
        s.symbols = malloc(length * sizeof *s.symbols);
        s.heap = malloc(3 * length * sizeof *s.heap);
        spelled = flags & SY_BYTE_LEVEL ? malloc(2 * length) : NULL;
        if (!s.symbols || !s.heap || (flags & SY_BYTE_LEVEL && !spelled))
            goto end;
    }
    uint32_t size = (uint32_t)length;
    if (flags & SY_BYTE_LEVEL) {
        size = spell(text, size, spelled);
        s.text = spelled;
        bytes = NULL; /* each byte is a character, and spelled it has two: they would not fit */
    }
    if (flags & SY_WHOLE) {
        int32_t token = sy_words_find(tokens, s.text, size);
        if (token >= 0) {
            *out = token;
            written = 1;
            goto end;
        }
    }
    uint32_t count = 0;
    for (uint32_t at = 0; at < size; count++) {
        uint32_t step = character(s.text + at, size - at);
        symbol *one = &s.symbols[count];
        one->start = at;
        one->length = step;
        one->before = count ? count - 1 : UINT32_MAX;
        one->after = at + step < size ? count + 1 : UINT32_MAX;
        one->hash = merges ? symbol_hash(&s, at, step) : 0;
        at += step;
    }
    for (uint32_t i = 0; i + 1 < count; i++)
        push(&s, i, i + 1);
    join_all(&s);
    written = 0;
    for (uint32_t i = 0; i < count; i++)
        if (s.symbols[i].length)
            written += write_symbol(&s, &s.symbols[i], bytes, out + written);
end:
    if (s.symbols != few_symbols)
        free(s.symbols);
    if (s.heap != few_entries)
        free(s.heap);
    if (spelled != few_bytes)
        free(spelled);
    return written;
}

/* --- unigram ---------------------------------------------------------------------------------------------- */

typedef struct {
    double sum;
    uint32_t length; /* of the token that ends here */
    int32_t token;   /* -1: unknown */
} best;

int64_t sy_unigram(const sy_words *tokens, const float *scores, double unknown_score, int32_t unknown,
                   const int32_t *bytes, const uint8_t *text, uint64_t length, int32_t *out)
{
    if (length > UINT32_MAX / 8)
        return -1;
    best *ends = malloc((length + 1) * sizeof *ends);
    if (!ends)
        return -1;
    for (uint64_t i = 0; i <= length; i++)
        ends[i] = (best){-INFINITY, 0, -1};
    ends[0].sum = 0;
    for (uint64_t at = 0; at < length;) {
        uint32_t one = character(text + at, length - at);
        double sum = ends[at].sum;
        int found = 0;
        for (uint64_t end = at + one; end <= length && end - at <= tokens->longest_bytes;) {
            int32_t token = sy_words_find(tokens, text + at, end - at);
            if (token >= 0 && !isnan(scores[token])) {
                found |= end == at + one;
                if (sum + scores[token] > ends[end].sum)
                    ends[end] = (best){sum + scores[token], (uint32_t)(end - at), token};
            }
            end += end < length ? character(text + end, length - end) : 1;
        }
        if (!found && sum + unknown_score > ends[at + one].sum)
            ends[at + one] = (best){sum + unknown_score, one, -1};
        at += one;
    }
    /* The way back gives the path reversed; lengths are turned round in place to walk it forwards. */
    uint32_t next = 0;
    for (uint64_t at = length; at > 0;) {
        uint32_t step = ends[at].length;
        if (!step) { /* cannot be reached: scores beyond all bounds */
            free(ends);
            return -1;
        }
        uint64_t from = at - step;
        ends[at].length = next;
        next = step;
        at = from;
    }
    int64_t written = 0;
    int in_unknown = 0;
    for (uint64_t at = 0, step = next; at < length;) {
        uint64_t end = at + step;
        int32_t token = ends[end].token;
        if (token >= 0) {
            out[written++] = token;
        } else if (bytes) {
            for (; at < end; at++)
                if (bytes[text[at]] >= 0)
                    out[written++] = bytes[text[at]];
        } else if (!in_unknown && unknown >= 0) {
            out[written++] = unknown;
        }
        in_unknown = token < 0;
        at = end;
        step = ends[end].length;
    }
    free(ends);
    return written;
}
