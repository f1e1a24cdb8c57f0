// Matrix products with the weights of a model, for WebAssembly with SIMD. The memory belongs to kernels.js.
//
//   clang --target=wasm32 -O3 -msimd128 -fno-builtin -nostdlib -Wl,--no-entry -Wl,--import-memory -Wl,--strip-all \
//     -Wl,--export=linear,--export=linear_int8,--export=product -o kernels.wasm kernels.c

#include <wasm_simd128.h>

static inline float sum(v128_t x) {
  return wasm_f32x4_extract_lane(x, 0) + wasm_f32x4_extract_lane(x, 1) + wasm_f32x4_extract_lane(x, 2) +
         wasm_f32x4_extract_lane(x, 3);
}

// out (m, n) = x (m, k) times the transpose of w (n, k). Two rows of w and two of x at a time.
void linear(const float *x, const float *w, float *out, int m, int k, int n) {
  for (int j = 0; j < n; j += 2) {
    const float *w0 = w + (long)j * k, *w1 = j + 1 < n ? w0 + k : w0;
    for (int i = 0; i < m; i += 2) {
      const float *x0 = x + (long)i * k, *x1 = i + 1 < m ? x0 + k : x0;
      v128_t a = wasm_f32x4_splat(0), b = a, c = a, d = a;
      int t = 0;
      for (; t + 4 <= k; t += 4) {
        v128_t p = wasm_v128_load(x0 + t), q = wasm_v128_load(x1 + t);
        v128_t r = wasm_v128_load(w0 + t), s = wasm_v128_load(w1 + t);
        a = wasm_f32x4_add(a, wasm_f32x4_mul(p, r));
        b = wasm_f32x4_add(b, wasm_f32x4_mul(p, s));
        c = wasm_f32x4_add(c, wasm_f32x4_mul(q, r));
        d = wasm_f32x4_add(d, wasm_f32x4_mul(q, s));
      }
      float e = sum(a), f = sum(b), g = sum(c), h = sum(d);
      for (; t < k; t++) {
        e += x0[t] * w0[t];
        f += x0[t] * w1[t];
        g += x1[t] * w0[t];
        h += x1[t] * w1[t];
      }
      out[(long)i * n + j] = e;
      if (j + 1 < n) out[(long)i * n + j + 1] = f;
      if (i + 1 < m) {
        out[(long)(i + 1) * n + j] = g;
        if (j + 1 < n) out[(long)(i + 1) * n + j + 1] = h;
      }
    }
  }
}

// The same with w of int8 and a scale for each of its rows.
void linear_int8(const float *x, const signed char *w, const float *scale, float *out, int m, int k, int n) {
  for (int j = 0; j < n; j++) {
    const signed char *row = w + (long)j * k;
    for (int i = 0; i < m; i++) {
      const float *from = x + (long)i * k;
      v128_t a = wasm_f32x4_splat(0), b = a;
      int t = 0;
      for (; t + 8 <= k; t += 8) {
        v128_t wide = wasm_i16x8_load8x8(row + t);
        v128_t low = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(wide));
        v128_t high = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(wide));
        a = wasm_f32x4_add(a, wasm_f32x4_mul(wasm_v128_load(from + t), low));
        b = wasm_f32x4_add(b, wasm_f32x4_mul(wasm_v128_load(from + t + 4), high));
      }
      float total = sum(wasm_f32x4_add(a, b));
      for (; t < k; t++) total += from[t] * row[t];
      out[(long)i * n + j] = total * scale[j];
    }
  }
}

// out (m, n) = a (m, k) times b (k, n).
void product(const float *a, const float *b, float *out, int m, int k, int n) {
  for (int i = 0; i < m; i++) {
    float *to = out + (long)i * n;
    for (int j = 0; j < n; j++) to[j] = 0;
    for (int t = 0; t < k; t++) {
      const float *row = b + (long)t * n;
      float factor = a[(long)i * k + t];
      v128_t wide = wasm_f32x4_splat(factor);
      int j = 0;
      for (; j + 4 <= n; j += 4)
        wasm_v128_store(to + j, wasm_f32x4_add(wasm_v128_load(to + j), wasm_f32x4_mul(wide, wasm_v128_load(row + j))));
      for (; j < n; j++) to[j] += factor * row[j];
    }
  }
}
