// The bodies of RowKernels over vectors of `lanes` floats.  Each instruction set includes them
// once, hence no include guard, in a namespace of its own, after defining
//   DYSPEC_TARGET   the target attribute of every function
//   lanes           floats per vector
//   bits(mask)      a bit for each lane of a comparison that is true, the first lane's lowest

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

// The first n entries at p, at most a vector; -inf behind them.
DYSPEC_INLINE vec load_first(const float *p, int32_t n) {
    if (n >= lanes) {
        return load(p);
    }
    vec v = splat(-INFINITY);
    __builtin_memcpy(&v, p, sizeof(float) * size_t(n));
    return v;
}

// Lane by lane; -inf where there is none.
DYSPEC_INLINE vec max_by_lane(const float *row, int32_t n) {
    vec a = splat(-INFINITY), b = a, c = a, d = a;
    int32_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        a = greater(load(row + i), a);
        b = greater(load(row + i + lanes), b);
        c = greater(load(row + i + 2 * lanes), c);
        d = greater(load(row + i + 3 * lanes), d);
    }
    for (; i < n; i += lanes) {
        a = greater(load_first(row + i, n - i), a);
    }
    return greater(greater(a, b), greater(c, d));
}

// Halves on halves: what a loop over single lanes would take many times as long for.
DYSPEC_INLINE float max_of_lanes(vec v) {
    float x[lanes];
    __builtin_memcpy(x, &v, sizeof v);
    for (int32_t half = lanes / 2; half > 0; half /= 2) {
        for (int32_t j = 0; j < half; j++) {
            x[j] = x[j + half] > x[j] ? x[j + half] : x[j];
        }
    }
    return x[0];
}

DYSPEC_INLINE float sum_of_lanes(vec v) {
    float x[lanes];
    __builtin_memcpy(x, &v, sizeof v);
    for (int32_t half = lanes / 2; half > 0; half /= 2) {
        for (int32_t j = 0; j < half; j++) {
            x[j] += x[j + half];
        }
    }
    return x[0];
}

DYSPEC_TARGET static float row_max(const float *row, int32_t n) {
    return max_of_lanes(max_by_lane(row, n));
}

// exp(x) for x <= 0: 2^n p(r), p the polynomial of degree 5 with p(0) = 1 that is nearest to exp on
// +-log(2)/2: 1e-7 off.  2^-126 below -87.3 and for NaN, which beside an entry of exp(0) is
// nothing.
DYSPEC_INLINE vec exp_negative(vec x) {
    x = greater(x, splat(-87.3f));
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const vec shifted = x * 1.44269504f + 12582912.0f;
    const vec n = shifted - 12582912.0f;
    vec r = x - n * 0.693359375f; // log(2) in two parts, the first of so few bits that n times it
    r = r - n * -2.12194440e-4f;  // is exact
    vec p = r * 8.290315047e-3f + 4.189793020e-2f;
    p = p * r + 1.666763574e-1f;
    p = p * r + 4.999915063e-1f;
    p = p * r + 9.999997020e-1f;
    p = p * r + 1.0f;
    return (vec)((ivec)p + ((ivec)shifted << 23));
}

// Sum of exp(x - max).  Meanwhile the `n` entries that follow come nearer to the processor.
DYSPEC_INLINE float sum_exp(const float *row, int32_t n, float max) {
    vec a{}, b{}, c{}, d{};
    int32_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        for (int32_t line = 0; line < 4 * lanes; line += floats_per_line) {
            __builtin_prefetch(row + n + i + line, 0, 2);
        }
        a += exp_negative(load(row + i) - max);
        b += exp_negative(load(row + i + lanes) - max);
        c += exp_negative(load(row + i + 2 * lanes) - max);
        d += exp_negative(load(row + i + 3 * lanes) - max);
    }
    for (; i < n; i += lanes) {
        a += exp_negative(load_first(row + i, n - i) - max);
    }
    return sum_of_lanes((a + b) + (c + d));
}

DYSPEC_TARGET static float row_reduce(const float *row, int32_t n, Groups *groups, double *sum) {
    // A row comes from memory once, group by group: for the maximum, then from the cache for the
    // sum.  Floats add up one group only, so that rounding does not grow with the row.
    groups->n = 0;
    float best = -INFINITY;
    *sum = 0;
    for (int32_t begin = 0; begin < n; begin += groups->size) {
        const int32_t size = n - begin < groups->size ? n - begin : groups->size;
        const float max = max_of_lanes(max_by_lane(row + begin, size));
        groups->maxima[groups->n++] = max;
        if (max > best) {
            *sum *= std::exp(double(best) - double(max));
            best = max;
        }
        *sum += double(sum_exp(row + begin, size, best));
    }
    return best;
}

DYSPEC_TARGET static int32_t row_find_at_least(const float *row, int32_t begin, int32_t n,
                                               float bound) {
    int32_t i = begin;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        const ivec hit = (load(row + i) >= bound) | (load(row + i + lanes) >= bound) |
                         (load(row + i + 2 * lanes) >= bound) |
                         (load(row + i + 3 * lanes) >= bound);
        if (bits(hit) != 0) {
            break;
        }
    }
    for (; i < n; i += lanes) {
        // Behind the row there is nothing to find: what is looked for is larger than -inf.
        const uint32_t hit = bits(load_first(row + i, n - i) >= bound);
        if (hit != 0) {
            return i + __builtin_ctz(hit);
        }
    }
    return n;
}

#undef DYSPEC_INLINE
