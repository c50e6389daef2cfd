/* Losses, and steps of optimisers. */

/* The largest logit of a row, and the sum of the powers of all less that one; in every lane */
#if defined(CROSS_ENTROPY) || defined(CROSS_ENTROPY_BACK)
#define HIGHEST_AND_SUM(highest, sum) \
    float highest = -INFINITY; \
    FOR_ROW(i, n) highest = fmax(highest, vec_max(FETCH(f32)(logits, args.logits.nb[0], i, n, -INFINITY))); \
    highest = GROUP_MAX(highest, scratch); \
    vec powers = VEC_OF(0.0f); \
    FOR_ROW(i, n) \
        powers = powers \
            + VEC_FIRST(VEC_EXP(FETCH(f32)(logits, args.logits.nb[0], i, n, 0.0f) - VEC_OF(highest)), n - i, 0.0f); \
    const float sum = GROUP_SUM(vec_sum(powers), scratch)
#endif

#ifdef CROSS_ENTROPY
/* dst[row] = the sum over a row of label (log of the sum of powers - (logit - highest)); one group a row */
KERNEL void cross_entropy(PARAMETERS)
{
    SHARED float scratch[LANES];
    const int row = GROUP;
    ROW_OF(logits);
    GLOBAL const char *logits = ROW(logits, i1, i2, i3);
    GLOBAL const char *labels = ROW(labels, i1, i2, i3);
    const int n = args.logits.ne[0];
    HIGHEST_AND_SUM(highest, sum);
    const float log_sum = log(sum);
    vec loss = VEC_OF(0.0f);
    FOR_ROW(i, n) {
        const vec away = VEC_OF(log_sum) - (FETCH(f32)(logits, args.logits.nb[0], i, n, 0.0f) - VEC_OF(highest));
        loss = loss + VEC_FIRST(away * FETCH(f32)(labels, args.labels.nb[0], i, n, 0.0f), n - i, 0.0f);
    }
    const float total = GROUP_SUM(vec_sum(loss), scratch);
    if (LANE == 0) *(GLOBAL float *)(ROW(dst, 0, 0, 0) + row * args.dst.nb[0]) = total;
}
#endif

#ifdef CROSS_ENTROPY_BACK
/* dst = (softmax(logits) - labels) dy / rows; one group a row */
KERNEL void cross_entropy_back(PARAMETERS)
{
    SHARED float scratch[LANES];
    ROW_OF(dst);
    GLOBAL const char *logits = ROW(logits, i1, i2, i3);
    GLOBAL const char *labels = ROW(labels, i1, i2, i3);
    const int n = args.dst.ne[0];
    HIGHEST_AND_SUM(highest, sum);
    const float factor = LOAD(f32)(ROW(dy, 0, 0, 0), 0, 0) / (float)args.rows, inverse = 1.0f / sum;
    FOR_ROW(i, n) {
        const vec power = VEC_EXP(FETCH(f32)(logits, args.logits.nb[0], i, n, 0.0f) - VEC_OF(highest));
        const vec r = (power * VEC_OF(inverse) - FETCH(f32)(labels, args.labels.nb[0], i, n, 0.0f)) * VEC_OF(factor);
        STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i, n, &r);
    }
}
#endif

#define NUMBER(name, i) (((GLOBAL const float *)ROW(name, 0, 0, 0))[i])
#define AT(name) (*(GLOBAL float *)(ROW(name, i1, i2, i3) + i0 * args.name.nb[0]))
#define UNIT 1

#ifdef ADAMW
KERNEL void adamw(PARAMETERS)
{
    UNIT_OF(dst);
    const float alpha = NUMBER(settings, 0), beta1 = NUMBER(settings, 1), beta2 = NUMBER(settings, 2);
    const float g = LOAD(f32)(ROW(grad, i1, i2, i3), args.grad.nb[0], i0);
    const float first = AT(m) * beta1 + g * (1.0f - beta1), second = AT(v) * beta2 + g * g * (1.0f - beta2);
    const float size = sqrt(second * NUMBER(settings, 6)) + NUMBER(settings, 3);
    AT(m) = first;
    AT(v) = second;
    AT(dst) = AT(dst) * (1.0f - alpha * NUMBER(settings, 4)) - alpha * (first * NUMBER(settings, 5)) / size;
}
#endif

#ifdef SGD
KERNEL void sgd(PARAMETERS)
{
    UNIT_OF(dst);
    const float alpha = NUMBER(settings, 0);
    AT(dst) = AT(dst) * (1.0f - alpha * NUMBER(settings, 1)) - alpha * LOAD(f32)(ROW(grad, i1, i2, i3), args.grad.nb[0], i0);
}
#endif
