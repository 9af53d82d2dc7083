// The bodies of RowKernels over vectors of `lanes` floats.  Each instruction set includes them
// once, hence no include guard, in a namespace of its own, after defining
//   DYSPEC_TARGET   the target attribute of every function
//   lanes           floats per vector
//   any(mask)       whether a lane of a comparison is true

#define DYSPEC_INLINE DYSPEC_TARGET static inline __attribute__((always_inline))

DYSPEC_INLINE vec load(const float *p) {
    vec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

DYSPEC_INLINE vec splat(float x) {
    return x - vec{};
}

// A NaN in x keeps `best`: the comparison is false.
DYSPEC_INLINE vec greater(vec x, vec best) {
    return x > best ? x : best;
}

// Lane by lane, over whole vectors; -inf where there is none.
DYSPEC_INLINE vec max_of_vectors(const float *row, int32_t n_vectors) {
    vec a = splat(-INFINITY), b = a, c = a, d = a;
    int32_t i = 0;
    for (; i + 4 <= n_vectors; i += 4) {
        const float *p = row + int64_t(i) * lanes;
        a = greater(load(p), a);
        b = greater(load(p + lanes), b);
        c = greater(load(p + 2 * lanes), c);
        d = greater(load(p + 3 * lanes), d);
    }
    for (; i < n_vectors; i++) {
        a = greater(load(row + int64_t(i) * lanes), a);
    }
    return greater(greater(a, b), greater(c, d));
}

DYSPEC_INLINE float max_of_lanes(vec v) {
    float best = -INFINITY;
    for (int32_t j = 0; j < lanes; j++) {
        best = v[j] > best ? v[j] : best;
    }
    return best;
}

DYSPEC_TARGET static float row_max(const float *row, int32_t n) {
    float best = max_of_lanes(max_of_vectors(row, n / lanes));
    for (int32_t i = n - n % lanes; i < n; i++) {
        best = row[i] > best ? row[i] : best;
    }
    return best;
}

// exp(x) for x <= 0: 2^n p(r) with the polynomial of Cephes' expf; 0 below -87.5 and for NaN.
DYSPEC_INLINE vec exp_negative(vec x) {
    x = greater(x, splat(-88.0f));
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const vec shifted = x * 1.44269504088896341f + 12582912.0f;
    const vec n = shifted - 12582912.0f;
    vec r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const ivec power = (((ivec)shifted - 0x4b400000) + 127) << 23;
    return p * (vec)power;
}

DYSPEC_INLINE double sum_lanes(vec v) {
    double sum = 0;
    for (int32_t j = 0; j < lanes; j++) {
        sum += double(v[j]);
    }
    return sum;
}

// Sum of exp(x - max).  Meanwhile the `n` entries that follow come nearer to the processor.
DYSPEC_INLINE double sum_exp(const float *row, int32_t n, float max) {
    // Floats add up short stretches only, so that rounding does not grow with the row.
    constexpr int32_t stretch = 128 * lanes;
    double sum = 0;
    int32_t i = 0;
    while (i + 4 * lanes <= n) {
        const int32_t end = n - i < stretch ? n : i + stretch;
        vec a{}, b{}, c{}, d{};
        for (; i + 4 * lanes <= end; i += 4 * lanes) {
            for (int32_t line = 0; line < 4 * lanes; line += floats_per_line) {
                __builtin_prefetch(row + n + i + line, 0, 2);
            }
            a += exp_negative(load(row + i) - max);
            b += exp_negative(load(row + i + lanes) - max);
            c += exp_negative(load(row + i + 2 * lanes) - max);
            d += exp_negative(load(row + i + 3 * lanes) - max);
        }
        sum += sum_lanes((a + b) + (c + d));
    }
    for (; i < n; i += lanes) {
        float tail[lanes];
        for (int32_t j = 0; j < lanes; j++) {
            tail[j] = i + j < n ? row[i + j] : -INFINITY;
        }
        sum += sum_lanes(exp_negative(load(tail) - max));
    }
    return sum;
}

// Makes `*max` and the `*sum` of exp(x - *max) those of some more entries as well.
DYSPEC_INLINE void add_entries(const float *row, int32_t n, float row_max, float *max,
                               double *sum) {
    if (row_max > *max) {
        *sum *= std::exp(double(*max) - double(row_max));
        *max = row_max;
    }
    *sum += sum_exp(row, n, *max);
}

DYSPEC_TARGET static float row_reduce(const float *row, int32_t n, float *maxima, int32_t *n_groups,
                                      double *sum) {
    // A row comes from memory once, run by run: for its maxima, then from the cache for the sum.
    // Lane j of a run is a group: no horizontal work inside the loops.
    const int32_t n_vectors = n / lanes, n_runs_wanted = groups_wanted / lanes;
    int32_t run = (n_vectors + n_runs_wanted - 1) / n_runs_wanted;
    run = run < 4 ? 4 : run;
    float *out = maxima;
    float best = -INFINITY;
    *sum = 0;
    for (int32_t begin = 0; begin < n_vectors; begin += run) {
        const int32_t size = n_vectors - begin < run ? n_vectors - begin : run;
        const float *piece = row + int64_t(begin) * lanes;
        const vec found = max_of_vectors(piece, size);
        __builtin_memcpy(out, &found, sizeof found);
        out += lanes;
        add_entries(piece, size * lanes, max_of_lanes(found), &best, sum);
    }
    if (n % lanes != 0) {
        const float *piece = row + (n - n % lanes);
        *out++ = row_max(piece, n % lanes);
        add_entries(piece, n % lanes, out[-1], &best, sum);
    }
    *n_groups = int32_t(out - maxima);
    return best;
}

DYSPEC_TARGET static int32_t row_find(const float *row, int32_t n, float value) {
    int32_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        const ivec hit = (load(row + i) == value) | (load(row + i + lanes) == value) |
                         (load(row + i + 2 * lanes) == value) |
                         (load(row + i + 3 * lanes) == value);
        if (any(hit)) {
            break;
        }
    }
    while (i < n && row[i] != value) {
        i++;
    }
    return i;
}

DYSPEC_TARGET static int32_t row_find_at_least(const float *row, int32_t begin, int32_t n,
                                               float bound) {
    int32_t i = begin;
    // After a hit the next one is often near: go on singly to the next multiple of a block.
    for (; i < n && i % (4 * lanes) != 0; i++) {
        if (row[i] >= bound) {
            return i;
        }
    }
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        const ivec hit = (load(row + i) >= bound) | (load(row + i + lanes) >= bound) |
                         (load(row + i + 2 * lanes) >= bound) |
                         (load(row + i + 3 * lanes) >= bound);
        if (any(hit)) {
            break;
        }
    }
    while (i < n && !(row[i] >= bound)) {
        i++;
    }
    return i;
}

#undef DYSPEC_INLINE
