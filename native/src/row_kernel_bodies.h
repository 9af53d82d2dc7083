// The bodies of RowKernels over vectors of `lanes` floats.  Each instruction set includes them
// once, hence no include guard, in a namespace of its own, after defining
//   DYSPEC_TARGET, DYSPEC_INLINE   what stands before its functions, and before those within them
//   lanes, Vec, Mask               floats per vector, the vector, what a comparison gives
//   load, store, splat, add, subtract, prefetch
//   multiply_add(a, b, c)          a b + c, rounded once or twice
//   greater(x, best)               x > best ? x : best, so that a NaN in x keeps `best`
//   times_power(x, shifted)        x 2^n, n the integer in the low bits of `shifted`
//   at_least(x, bound)             x >= bound; `either` of two masks; `any` lane of one

// The first n entries at p, at most a vector; -inf behind them.
DYSPEC_INLINE Vec load_first(const float *p, int32_t n) {
    if (n >= lanes) {
        return load(p);
    }
    float x[lanes];
    for (int32_t j = 0; j < lanes; j++) {
        x[j] = j < n ? p[j] : -INFINITY;
    }
    return load(x);
}

// Lane by lane; -inf where there is none.
DYSPEC_INLINE Vec max_by_lane(const float *row, int32_t n) {
    Vec a = splat(-INFINITY), b = a, c = a, d = a;
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
DYSPEC_INLINE float max_of_lanes(Vec v) {
    float x[lanes];
    store(x, v);
    for (int32_t half = lanes / 2; half > 0; half /= 2) {
        for (int32_t j = 0; j < half; j++) {
            x[j] = x[j + half] > x[j] ? x[j + half] : x[j];
        }
    }
    return x[0];
}

DYSPEC_INLINE float sum_of_lanes(Vec v) {
    float x[lanes];
    store(x, v);
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
DYSPEC_INLINE Vec exp_negative(Vec x) {
    x = greater(x, splat(-87.3f));
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const Vec magic = splat(12582912.0f);
    const Vec shifted = multiply_add(x, splat(1.44269504f), magic);
    const Vec n = subtract(shifted, magic);
    // log(2) in two parts, the first of so few bits that n times it is exact.
    Vec r = multiply_add(n, splat(-0.693359375f), x);
    r = multiply_add(n, splat(2.12194440e-4f), r);
    Vec p = multiply_add(r, splat(8.290315047e-3f), splat(4.189793020e-2f));
    p = multiply_add(p, r, splat(1.666763574e-1f));
    p = multiply_add(p, r, splat(4.999915063e-1f));
    p = multiply_add(p, r, splat(9.999997020e-1f));
    p = multiply_add(p, r, splat(1.0f));
    return times_power(p, shifted);
}

// Sum of exp(x - max).  Meanwhile the `n` entries that follow come nearer to the processor.
DYSPEC_INLINE float sum_exp(const float *row, int32_t n, float max) {
    const Vec most = splat(max);
    Vec a = splat(0.0f), b = a, c = a, d = a;
    int32_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        for (int32_t line = 0; line < 4 * lanes; line += floats_per_line) {
            prefetch(row + n + i + line);
        }
        a = add(a, exp_negative(subtract(load(row + i), most)));
        b = add(b, exp_negative(subtract(load(row + i + lanes), most)));
        c = add(c, exp_negative(subtract(load(row + i + 2 * lanes), most)));
        d = add(d, exp_negative(subtract(load(row + i + 3 * lanes), most)));
    }
    for (; i < n; i += lanes) {
        a = add(a, exp_negative(subtract(load_first(row + i, n - i), most)));
    }
    return sum_of_lanes(add(add(a, b), add(c, d)));
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
    const Vec least = splat(bound);
    int32_t i = begin;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        const Mask first =
            either(at_least(load(row + i), least), at_least(load(row + i + lanes), least));
        const Mask second = either(at_least(load(row + i + 2 * lanes), least),
                                   at_least(load(row + i + 3 * lanes), least));
        if (any(either(first, second))) {
            break;
        }
    }
    while (i < n && !(row[i] >= bound)) {
        i++;
    }
    return i;
}

#undef DYSPEC_INLINE
#undef DYSPEC_TARGET
