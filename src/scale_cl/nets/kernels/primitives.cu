// What the kernels need of the machine: asynchronous copies, TF32 products of a warp. The tests have it for a CPU.

__device__ __forceinline__ void copy16(float* to, const float* from, bool inside) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    int bytes = inside ? 16 : 0;  // what is not read is filled with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy4(float* to, const float* from, bool inside) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    int bytes = inside ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int YOUNGEST>
__device__ __forceinline__ void wait_for_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(YOUNGEST) : "memory");
}
__device__ __forceinline__ float* shared() {  // what the launch gave of it
    extern __shared__ float4 of_the_launch[];
    return reinterpret_cast<float*>(of_the_launch);
}
__device__ __forceinline__ void store2(float* to, float a, float b) {
    *reinterpret_cast<float2*>(to) = make_float2(a, b);
}
__device__ __forceinline__ unsigned tf32(float v) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
    return r;
}
__device__ __forceinline__ void mma(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
