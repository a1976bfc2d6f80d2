/* SPDX-FileCopyrightText: 2026 The securetrain developers
 * SPDX-License-Identifier: Apache-2.0
 *
 * The sketch of sketch.py, in one pass over memory, for up to four keys at once.
 *
 * Numbers are seen in groups of 16 and words of 32. A word of 64 secret bits gives each of its two
 * groups 16 signs and one of 16 accumulators, 16 numbers wide. After each row of 256 words they are
 * added to the result, their lanes turned by a secret amount. Few numbers are summed in fp32, the
 * rest in fp64.
 *
 * The caller (kernel.py) has checked every size, index and pointer. Nothing here allocates, keeps
 * state or calls anything but memcpy and memset.
 */
#include <stdint.h>
#include <string.h>

#ifndef SECURETRAIN_SOURCE
#error "SECURETRAIN_SOURCE, the SHA-256 of this file, is defined by tools/kernel.py"
#endif

#define LANES 16
#define BUCKETS 16
#define SIZE (LANES * BUCKETS)
#define WORD 32
#define COLUMNS 256
#define ROW (WORD * COLUMNS)
#define AHEAD 4096 /* bytes: the processor alone looks only to the end of a page */

/* One group; compilers cut it to the width that the processor has. */
typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef double doubles __attribute__((vector_size(64)));
/* Such in memory, wherever they begin. */
typedef int32_t loose_ints __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint16_t loose_halves __attribute__((vector_size(32), aligned(1), may_alias));
typedef float half_group __attribute__((vector_size(32), may_alias));

enum kind { FP32 = 0, BF16 = 1 };
enum path { PORTABLE = 0, AVX2 = 1, AVX512 = 2 };

struct run {
    int64_t data;  /* address of `count` numbers that follow each other */
    int64_t kind;
    int64_t first; /* which number of the whole the first one is */
    int64_t count;
    int64_t out; /* which sketch they are added to */
};

struct key { /* T0[a] ^ T1[b] ^ T2[a + b] is the word in column a of row b */
    const uint64_t *t0, *t1, *t2;
};

struct row { /* the same from one word of a row on */
    const uint64_t *t0, *t2;
    uint64_t t1;
};

/* Lane l of a group has bit l: these shifts bring it to the place of the sign. */
static const ints SHIFT = {31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16};

#define INLINE static inline __attribute__((always_inline))

/* The bits of 32 numbers, as two groups. bf16 is the upper half of fp32. */
INLINE void load(ints *x, const unsigned char *data, const int kind) {
    if (kind == FP32) {
        x[0] = ((const loose_ints *)data)[0];
        x[1] = ((const loose_ints *)data)[1];
    } else {
        x[0] = __builtin_convertvector(((const loose_halves *)data)[0], ints) << 16;
        x[1] = __builtin_convertvector(((const loose_halves *)data)[1], ints) << 16;
    }
}

/* Negate the numbers whose bit is set, and add all to one accumulator. */
INLINE void add_group(floats *sum, const ints x, uint32_t bits) {
    const ints all = (ints){0} + (int32_t)bits;
    *sum += (floats)(x ^ ((all << SHIFT) & INT32_MIN));
}

/* Word `w` behind those that a row's tables begin with. */
INLINE void add_word(floats (*sums)[BUCKETS], const unsigned char *data, const int kind,
                     const struct row *rows, const int num_keys, int64_t w) {
    ints x[2];
    load(x, data, kind);
    for (int k = 0; k < num_keys; k++) {
        uint64_t h = rows[k].t0[w] ^ rows[k].t1 ^ rows[k].t2[w];
        add_group(&sums[k][(h >> 16) & 15], x[0], (uint32_t)h);
        add_group(&sums[k][(h >> 36) & 15], x[1], (uint32_t)(h >> 20));
    }
}

/* The tables of one row, from one of its words on: the loop over words has nothing to work out. */
INLINE void find_row(struct row *rows, const struct key *keys, const int num_keys, int64_t at) {
    const int64_t row = at / ROW, column = at % ROW / WORD;
    for (int k = 0; k < num_keys; k++) {
        rows[k].t0 = keys[k].t0 + column;
        rows[k].t1 = keys[k].t1[row];
        rows[k].t2 = keys[k].t2 + row + column;
    }
}

/* Numbers `from` to `to` of a word that is not whole; the others count as zero. */
INLINE void add_piece(floats (*sums)[BUCKETS], const unsigned char *data, const int kind,
                      const struct key *keys, const int num_keys, int64_t at, int64_t count) {
    unsigned char word[4 * WORD];
    const int width = kind == FP32 ? 4 : 2;
    memset(word, 0, sizeof word);
    memcpy(word + width * (at % WORD), data, (size_t)(width * count));
    struct row rows[4];
    find_row(rows, keys, num_keys, at);
    add_word(sums, word, kind, rows, num_keys, 0);
}

/* Add the fp32 accumulators to the fp64 ones, and forget them. */
INLINE void widen(floats *sums, doubles *wide) {
    for (int i = 0; i < 2 * BUCKETS; i++) {
        wide[i] += __builtin_convertvector(((const half_group *)sums)[i], doubles);
    }
    memset(sums, 0, BUCKETS * sizeof *sums);
}

/* Turn the lanes, add them to the result, and forget them. */
INLINE void drain(doubles *wide, int turn, double *out) {
    for (int b = 0; b < BUCKETS; b++) {
        double twice[2 * LANES];
        memcpy(twice, &wide[2 * b], LANES * sizeof *twice);
        memcpy(twice + LANES, &wide[2 * b], LANES * sizeof *twice);
        for (int l = 0; l < LANES; l++) {
            out[b * LANES + l] += twice[LANES - turn + l];
        }
    }
    memset(wide, 0, SIZE / 8 * sizeof *wide);
}

INLINE void sketch(const struct run *run, const int kind, const struct key *keys,
                   const int num_keys, double *out) {
    const unsigned char *data = (const unsigned char *)(intptr_t)run->data;
    const int width = kind == FP32 ? 4 : 2;
    /* fp32 is summed a quarter of a row at a time: half the rounding. bf16 is rounded already. */
    const int64_t span = kind == FP32 ? ROW / 4 : ROW;
    int64_t at = run->first, end = run->first + run->count;
    floats sums[4][BUCKETS];
    doubles wide[4][SIZE / 8];
    memset(sums, 0, (size_t)num_keys * sizeof sums[0]);
    memset(wide, 0, (size_t)num_keys * sizeof wide[0]);
    while (at < end) {
        const int64_t row = at / ROW, next = (at / span + 1) * span;
        const int64_t stop = next < end ? next : end;
        if (at % WORD != 0) {
            int64_t rest = WORD - at % WORD;
            rest = rest < stop - at ? rest : stop - at;
            add_piece(sums, data, kind, keys, num_keys, at, rest);
            at += rest;
            data += width * rest;
        }
        const int64_t words = (stop - at) / WORD;
        struct row rows[4];
        if (words > 0) { /* a piece may have ended the row, and the tables */
            find_row(rows, keys, num_keys, at);
        }
        for (int64_t w = 0; w < words; w++, data += width * WORD) {
            for (int line = 0; line < width * WORD; line += 64) {
                __builtin_prefetch((const void *)((uintptr_t)data + AHEAD + (uintptr_t)line), 0, 0);
            }
            add_word(sums, data, kind, rows, num_keys, w);
        }
        at += words * WORD;
        if (at < stop) {
            add_piece(sums, data, kind, keys, num_keys, at, stop - at);
            data += width * (stop - at);
            at = stop;
        }
        for (int k = 0; k < num_keys; k++) {
            widen(sums[k], wide[k]);
            if (at % ROW == 0 || at == end) {
                drain(wide[k], (int)(keys[k].t1[row] >> 60), out + k * SIZE);
            }
        }
    }
}

/* Constants where the compiler wants them: one loop for each kind and number of keys. */
#define FOR_KEYS(KIND)                                                                             \
    switch (num_keys) {                                                                            \
    case 1: sketch(run, KIND, keys, 1, to); break;                                                 \
    case 2: sketch(run, KIND, keys, 2, to); break;                                                 \
    case 3: sketch(run, KIND, keys, 3, to); break;                                                 \
    default: sketch(run, KIND, keys, 4, to); break;                                                \
    }
#define EVERY_RUN                                                                                  \
    for (const struct run *run = runs; run < runs + num_runs; run++) {                             \
        double *to = out + run->out * num_keys * SIZE;                                             \
        if (run->kind == FP32) {                                                                   \
            FOR_KEYS(FP32)                                                                         \
        } else {                                                                                   \
            FOR_KEYS(BF16)                                                                         \
        }                                                                                          \
    }

static void portable(const struct run *runs, int64_t num_runs, const struct key *keys,
                     int num_keys, double *out) {
    EVERY_RUN
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void avx2(const struct run *runs, int64_t num_runs,
                                                 const struct key *keys, int num_keys,
                                                 double *out) {
    EVERY_RUN
}

__attribute__((target("avx2,avx512f,avx512vl"))) static void
avx512(const struct run *runs, int64_t num_runs, const struct key *keys, int num_keys,
       double *out) {
    EVERY_RUN
}
#endif

#define PUBLIC __attribute__((visibility("default")))

PUBLIC const char *securetrain_sketch_source(void);
PUBLIC int securetrain_sketch_best_path(void);
PUBLIC int securetrain_sketch(int path, const struct run *runs, int64_t num_runs,
                              const struct key *keys, int num_keys, double *out);

/* The digest of the source that this was made from: the caller takes no other. */
const char *securetrain_sketch_source(void) {
    return SECURETRAIN_SOURCE;
}

int securetrain_sketch_best_path(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
        return AVX512;
    }
    return __builtin_cpu_supports("avx2") ? AVX2 : PORTABLE;
#else
    return PORTABLE;
#endif
}

/* Add the sketches of all runs to `out`, (sketches, keys, 256) fp64; 0, or -1 for bad arguments. */
int securetrain_sketch(int path, const struct run *runs, int64_t num_runs, const struct key *keys,
                       int num_keys, double *out) {
    if (num_keys < 1 || num_keys > 4 || path < PORTABLE || path > securetrain_sketch_best_path()) {
        return -1;
    }
#if defined(__x86_64__)
    if (path == AVX512) {
        avx512(runs, num_runs, keys, num_keys, out);
        return 0;
    }
    if (path == AVX2) {
        avx2(runs, num_runs, keys, num_keys, out);
        return 0;
    }
#endif
    portable(runs, num_runs, keys, num_keys, out);
    return 0;
}
