// The inverse of the normal distribution function by AS 241 (Wichura 1988), for probabilities in [e^-25, 1 - e^-25].
// Twin of inverse_normal.py. Include device/types.cuh and device/elementary.cuh first.

__device__ __forceinline__ f64 inverse_normal(f64 p) {
    const f64 q = p - 0.5;
    f64 r = fused(-q, q, 0.425 * 0.425);
    f64 above = 2.5090809287301226727e3;
    above = fused(above, r, 3.3430575583588128105e4);
    above = fused(above, r, 6.7265770927008700853e4);
    above = fused(above, r, 4.5921953931549871457e4);
    above = fused(above, r, 1.3731693765509461125e4);
    above = fused(above, r, 1.9715909503065514427e3);
    above = fused(above, r, 1.3314166789178437745e2);
    above = fused(above, r, 3.3871328727963666080);
    f64 below = 5.2264952788528545610e3;
    below = fused(below, r, 2.8729085735721942674e4);
    below = fused(below, r, 3.9307895800092710610e4);
    below = fused(below, r, 2.1213794301586595867e4);
    below = fused(below, r, 5.3941960214247511077e3);
    below = fused(below, r, 6.8718700749205790830e2);
    below = fused(below, r, 4.2313330701600911252e1);
    below = fused(below, r, 1.0);
    const f64 centre = q * above / below;
    const f64 tail = q < 0.0 ? p : 1.0 - p;
    r = sqrt(-log64(tail)) - 1.6;
    above = 7.74545014278341407640e-4;
    above = fused(above, r, 2.27238449892691845833e-2);
    above = fused(above, r, 2.41780725177450611770e-1);
    above = fused(above, r, 1.27045825245236838258);
    above = fused(above, r, 3.64784832476320460504);
    above = fused(above, r, 5.76949722146069140550);
    above = fused(above, r, 4.63033784615654529590);
    above = fused(above, r, 1.42343711074968357734);
    below = 1.05075007164441684324e-9;
    below = fused(below, r, 5.47593808499534494600e-4);
    below = fused(below, r, 1.51986665636164571966e-2);
    below = fused(below, r, 1.48103976427480074590e-1);
    below = fused(below, r, 6.89767334985100004550e-1);
    below = fused(below, r, 1.67638483018380384940);
    below = fused(below, r, 2.05319162663775882187);
    below = fused(below, r, 1.0);
    const f64 far = above / below;
    return fabs(q) <= 0.425 ? centre : q < 0.0 ? -far : far;
}
