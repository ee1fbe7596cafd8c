// Two random words as two independent standard normals by Box and Muller (1958). Twin of normal.py.
// Include device/types.cuh, device/elementary.cuh, device/uniform.cuh first.

struct NormalPair {
    f32 z0, z1;
};

__device__ __forceinline__ NormalPair box_muller(u32 radius_word, u32 angle_word) {
    const f32 r = sqrt_within(minus_two_log(uniform(radius_word)));  // of -0.0, or of a number in [1e-7, 46]
    const SineCosine angle = sincos_turn(angle_word);
    return {r * angle.cosine, r * angle.sine};
}
