/* Which elements a work-item or a work-group computes, and sums over a group. */

/* One item for each unit of dst: UNIT elements (a vec, or a block), at i0 of row (i1, i2, i3) */
#define UNIT_OF(name) \
    const uint32_t item = (uint32_t)GROUP * LANES + LANE; \
    const uint32_t units = ((uint32_t)args.name.ne[0] + UNIT - 1) / UNIT; \
    uint32_t rest = item / units; \
    const int i0 = (int)(item % units * UNIT); \
    const int i1 = (int)(rest % (uint32_t)args.name.ne[1]); \
    rest /= (uint32_t)args.name.ne[1]; \
    const int i2 = (int)(rest % (uint32_t)args.name.ne[2]); \
    const int i3 = (int)(rest / (uint32_t)args.name.ne[2]); \
    if (i3 >= args.name.ne[3]) return

/* One group for each row: (i1, i2, i3) */
#define ROW_OF(name) ROW_NUMBER(name, GROUP)
#define ROW_NUMBER(name, number) \
    uint32_t rest = (uint32_t)(number); \
    const int i1 = (int)(rest % (uint32_t)args.name.ne[1]); \
    rest /= (uint32_t)args.name.ne[1]; \
    const int i2 = (int)(rest % (uint32_t)args.name.ne[2]); \
    const int i3 = (int)(rest / (uint32_t)args.name.ne[2])

#define FOR_ROW(i, n) for (int i = LANE * VEC; i < (n); i += LANES * VEC)

/* A run of elementwise ops on a vec v, elements `at` on of the row (i1, i2, i3), of which there are `count`: EPILOGUE is made
   of these steps, or of none. */
#define STEP_ONE(v, F) do { vec r_; MAP1(r_, F, v); v = r_; } while (0);
#define STEP_TWO(v, F, Y) do { const vec y_ = Y; vec r_; MAP2(r_, F, v, y_); v = r_; } while (0);
#define STEP_SWAPPED(v, F, X) do { const vec x_ = X; vec r_; MAP2(r_, F, x_, v); v = r_; } while (0);
#ifndef EPILOGUE
#define EPILOGUE(v, at, count, i1, i2, i3)
#endif

#define LOAD(T) JOIN(load_, T)
#define FETCH(T) JOIN(fetch_, T)
#define DENSE(T) JOIN(dense_, T)
#define ALIGNED_DENSE(T) JOIN(aligned_, T)
#define SCALE(T) JOIN(group_scale_, T)
#define MINIMUM(T) JOIN(group_minimum_, T)
#define STORE(T) JOIN(store_, T)

/* Sum and maximum over a group, the same in every lane; scratch has LANES floats. */
#if LANES == 1
#define GROUP_SUM(x, scratch) (x)
#define GROUP_MAX(x, scratch) (x)
#else
#ifndef WARP
#define WARP 1
#define SHUFFLED(x, lanes) (x)
#endif
/* Each warp reduces by itself, and then each lane what the warps found, always in the same order. */
#define GROUP_REDUCTION(name, STEP) \
    INLINE float name(float x, LOCAL float *scratch) \
    { \
        for (int lanes = WARP / 2; lanes > 0; lanes /= 2) { \
            const float other = SHUFFLED(x, lanes); \
            x = STEP(x, other); \
        } \
        if (LANES <= WARP) return x; \
        scratch[LANE] = x; \
        BARRIER(); \
        for (int half_of = LANES / 2; half_of >= WARP; half_of /= 2) { \
            if (LANE < half_of) scratch[LANE] = STEP(scratch[LANE], scratch[LANE + half_of]); \
            BARRIER(); \
        } \
        x = scratch[0]; \
        BARRIER(); \
        return x; \
    }
#define PLUS(a, b) ((a) + (b))
GROUP_REDUCTION(group_sum, PLUS)
GROUP_REDUCTION(group_max, fmax)
#define GROUP_SUM(x, scratch) group_sum(x, scratch)
#define GROUP_MAX(x, scratch) group_max(x, scratch)
#endif
