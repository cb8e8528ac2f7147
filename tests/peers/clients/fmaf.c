// QEMU computes each fused multiply-add of an emulated CPU by fmaf(), between vector instructions of its own that leave
// the upper halves of registers in use. On many CPUs the change from those to others then takes a hundred cycles, twice
// for each number; to clear the halves first makes the emulation five times faster. The sums are the same.
#include <immintrin.h>

float fmaf(float a, float b, float c)
{
    _mm256_zeroupper();
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
