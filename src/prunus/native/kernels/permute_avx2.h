// A few samples with AVX2, rows in the lanes; included inside an anonymous namespace after tile.h.

// The values of two slots as floats, the even slot's in the low lanes and the odd one's in the high lanes. Widening
// stays within the lanes and off the units that shuffle, so narrow values come in an order of their own: `order` puts
// the indices into it, `back` the sums into that of the rows.
template <typename T>
struct Pair;

template <>
struct Pair<float> {
    static __m256i order(__m256i index) { return index; }
    static void load(const float *p, vec (&out)[4]) {
        for (int i = 0; i < 4; ++i, p += 4)
            out[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + lanes), 1);
    }
    static void ready(const uint8_t *at, __m256i &, vec (&out)[4]) {
        for (int i = 0; i < 4; ++i) out[i] = _mm256_load_ps(reinterpret_cast<const float *>(at) + 8 * i);
    }
    static void back(__m128 (&)[4]) {}
    static constexpr int bytes = 4 * 32;
};

template <>
struct Pair<uint16_t> {  // rows 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15
    static __m256i order(__m256i index) {
        const __m128i rows = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        return _mm256_shuffle_epi8(index, _mm256_broadcastsi128_si256(rows));
    }
    static void load(const uint16_t *p, vec (&out)[4]) {
        for (int i = 0; i < 4; i += 2, p += 8) {
            const __m128i even = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
            const __m128i odd = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p + lanes));
            widen(_mm256_inserti128_si256(_mm256_castsi128_si256(even), odd, 1), out[i], out[i + 1]);
        }
    }
    static void ready(const uint8_t *at, __m256i &index, vec (&out)[4]) {
        const __m256i *from = reinterpret_cast<const __m256i *>(at);
        index = _mm256_load_si256(from);
        widen(_mm256_load_si256(from + 1), out[0], out[1]);
        widen(_mm256_load_si256(from + 2), out[2], out[3]);
    }
    static void widen(__m256i both, vec &even, vec &odd) {
        even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
        odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int(0xFFFF0000u))));
    }
    static constexpr int bytes = 3 * 32;
    static void back(__m128 (&sum)[4]) {
        for (int i = 0; i < 4; i += 2) {
            const __m128 low = _mm_unpacklo_ps(sum[i], sum[i + 1]);
            sum[i + 1] = _mm_unpackhi_ps(sum[i], sum[i + 1]), sum[i] = low;
        }
    }
};

template <>
struct Pair<int8_t> {  // rows 0 4 8 12, 1 5 9 13, 2 6 10 14, 3 7 11 15
    static __m256i order(__m256i index) {
        const __m128i rows = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        return _mm256_shuffle_epi8(index, _mm256_broadcastsi128_si256(rows));
    }
    // A product with one and zero picks a neighbour and widens it.
    static void load(const int8_t *p, vec (&out)[4]) { widen(reinterpret_cast<const __m256i *>(p), out); }
    static void ready(const uint8_t *at, __m256i &index, vec (&out)[4]) {
        const __m256i *from = reinterpret_cast<const __m256i *>(at);
        index = _mm256_load_si256(from);
        widen(from + 1, out);
    }
    static void widen(const __m256i *from, vec (&out)[4]) {
        const __m256i both = _mm256_loadu_si256(from);
        const __m256i even = _mm256_maddubs_epi16(_mm256_set1_epi16(0x0001), both);
        const __m256i odd = _mm256_maddubs_epi16(_mm256_set1_epi16(0x0100), both);
        const __m256i first = _mm256_set1_epi32(0x00000001), second = _mm256_set1_epi32(0x00010000);
        out[0] = _mm256_cvtepi32_ps(_mm256_madd_epi16(even, first));
        out[1] = _mm256_cvtepi32_ps(_mm256_madd_epi16(odd, first));
        out[2] = _mm256_cvtepi32_ps(_mm256_madd_epi16(even, second));
        out[3] = _mm256_cvtepi32_ps(_mm256_madd_epi16(odd, second));
    }
    static void back(__m128 (&sum)[4]) { _MM_TRANSPOSE4_PS(sum[0], sum[1], sum[2], sum[3]); }
    static constexpr int bytes = 2 * 32;
};

// The sixteen floats of a bank as four planes of bytes, which is what a byte shuffle can look up.
inline void byte_planes(const float *bank, __m128i (&plane)[4]) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m128i a[4];
    for (int i = 0; i < 4; ++i) a[i] = _mm_shuffle_epi8(_mm_castps_si128(_mm_loadu_ps(bank + 4 * i)), order);
    const __m128i b0 = _mm_unpacklo_epi32(a[0], a[1]), b1 = _mm_unpacklo_epi32(a[2], a[3]);
    const __m128i b2 = _mm_unpackhi_epi32(a[0], a[1]), b3 = _mm_unpackhi_epi32(a[2], a[3]);
    plane[0] = _mm_unpacklo_epi64(b0, b1), plane[1] = _mm_unpackhi_epi64(b0, b1);
    plane[2] = _mm_unpacklo_epi64(b2, b3), plane[3] = _mm_unpackhi_epi64(b2, b3);
}

// For each pair of slots, sixteen columns of the bank after the other and plane by plane, the table of the even slot's
// bank beside that of the odd one's.
void prepare_tables(const int32_t *schedule, int64_t slots, int64_t bank, const float *x, uint8_t *tables) {
    const int64_t parts = bank / 16;
    for (int64_t part = 0; part < parts; ++part) {
        __m128i plane[4] = {};
        uint8_t *to = tables + part * 128;
        for (int64_t s = 0; s < slots + slots % 2; ++s) {
            if (s < slots && (s == 0 || schedule[s] != schedule[s - 1]))
                byte_planes(x + schedule[s] * bank + part * 16, plane);
            uint8_t *out = to + s / 2 * 128 * parts + s % 2 * 16;
            for (int i = 0; i < 4; ++i) _mm_store_si128(reinterpret_cast<__m128i *>(out + 32 * i), plane[i]);
        }
    }
}

// Two slots of sixteen rows at once. A permute across the register costs this machine class two operations and a bank
// is two registers, so the inputs are looked up byte by byte instead: four shuffles within lanes, one for each byte of
// a float, then eight interleaves put the floats together. The even slot stays in the low lane, the odd in the high.
// A bank of 32 or 64 columns is looked up in two or four parts; a shuffle gives zero where the index lies in another.
template <int parts>
inline void permute_pair(const uint8_t *tables, __m256i index, const vec (&weight)[4], vec (&sum)[4]) {
    __m256i byte[4];
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part) {
        __m256i inside = index;
        if (parts > 1)
            inside =
                _mm256_adds_epu8(_mm256_sub_epi8(index, _mm256_set1_epi8(char(16 * part))), _mm256_set1_epi8(0x70));
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m256i *table = reinterpret_cast<const __m256i *>(tables + 128 * part + 32 * i);
            const __m256i found = _mm256_shuffle_epi8(_mm256_load_si256(table), inside);
            byte[i] = part ? _mm256_or_si256(byte[i], found) : found;
        }
    }
    const __m256i a0 = _mm256_unpacklo_epi8(byte[0], byte[1]), b0 = _mm256_unpacklo_epi8(byte[2], byte[3]);
    const __m256i a1 = _mm256_unpackhi_epi8(byte[0], byte[1]), b1 = _mm256_unpackhi_epi8(byte[2], byte[3]);
    sum[0] = fma(weight[0], _mm256_castsi256_ps(_mm256_unpacklo_epi16(a0, b0)), sum[0]);
    sum[1] = fma(weight[1], _mm256_castsi256_ps(_mm256_unpackhi_epi16(a0, b0)), sum[1]);
    sum[2] = fma(weight[2], _mm256_castsi256_ps(_mm256_unpacklo_epi16(a1, b1)), sum[2]);
    sum[3] = fma(weight[3], _mm256_castsi256_ps(_mm256_unpackhi_epi16(a1, b1)), sum[3]);
}

// The indices of two slots: halves of the same bytes, or one byte each. `alone`: the second slot does not exist.
template <int parts>
inline __m256i pair_index(const uint8_t *packet, bool alone) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i *>(packet));
    if (parts > 1)
        return alone ? _mm256_zextsi128_si256(first) : _mm256_loadu_si256(reinterpret_cast<const __m256i *>(packet));
    const __m256i both = _mm256_broadcastsi128_si256(first);
    const __m256i split = _mm256_blend_epi32(both, _mm256_srli_epi16(both, 4), 0xF0);
    return _mm256_and_si256(split, _mm256_set1_epi8(15));
}

template <int parts, typename T>
inline void stored_pair(const uint8_t *tables, const uint8_t *packet, bool alone, const T *values, vec (&sum)[4]) {
    vec weight[4];
    Pair<T>::load(values, weight);
    permute_pair<parts>(tables, Pair<T>::order(pair_index<parts>(packet, alone)), weight, sum);
}

template <typename T>
inline void store_sums(const vec (&sum)[4], float *out) {
    __m128 total[4];
    for (int i = 0; i < 4; ++i) total[i] = _mm_add_ps(_mm256_castps256_ps128(sum[i]), _mm256_extractf128_ps(sum[i], 1));
    Pair<T>::back(total);
    for (int i = 0; i < 4; ++i) _mm_storeu_ps(out + 4 * i, total[i]);
}

template <int parts, typename T>
inline void permute_group(const Packed &p, int64_t group, const uint8_t *tables, float *out) {
    const T *values = static_cast<const T *>(p.values) + p.slot_start[group] * lanes;
    const uint8_t *packet = p.index + p.packet_start[group] * lanes;
    int64_t slots = p.slots(group);
    vec sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (; slots >= 2; slots -= 2, packet += (parts > 1 ? 2 : 1) * lanes, tables += 128 * parts, values += 2 * lanes) {
        _mm_prefetch(reinterpret_cast<const char *>(values) + 1024, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char *>(values) + 1088, _MM_HINT_T0);
        stored_pair<parts>(tables, packet, false, values, sum);
    }
    if (slots) {
        T last[2 * lanes] = {};
        for (int i = 0; i < lanes; ++i) last[i] = values[i];
        stored_pair<parts>(tables, packet, true, last, sum);
    }
    store_sums<T>(sum, out);
}

// The same from weights in the kernel's own order; a slot that does not exist is a zero there.
template <typename T>
inline void ready_group(const Packed &p, const Ready &ready, int64_t group, const uint8_t *tables, float *out) {
    const uint8_t *at = ready.at + ready.start[group], *packet = p.index + p.packet_start[group] * lanes;
    vec sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t pairs = (p.slots(group) + 1) / 2; pairs > 0; --pairs, at += Pair<T>::bytes, tables += 128) {
        vec weight[4];
        __m256i index;
        if (p.kind == Values::f32) index = pair_index<1>(packet, false), packet += lanes;
        Pair<T>::ready(at, index, weight);
        permute_pair<1>(tables, index, weight, sum);
    }
    store_sums<T>(sum, out);
}

// Sixteen values of one slot: rows 0 .. 7 and 8 .. 15, or with bfloat16 the even and the odd ones.
inline void slot_values(const float *p, vec &first, vec &second) { first = load(p), second = load(p + 8); }
inline void slot_values(const uint16_t *p, vec &first, vec &second) {
    Pair<uint16_t>::widen(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)), first, second);
}
inline void slot_values(const int8_t *p, vec &first, vec &second) {
    const auto eight = [](const int8_t *from) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from))));
    };
    first = eight(p), second = eight(p + 8);
}

// Each slot looks its rows up in four neighbouring inputs, which one permute within the lanes does: two bits of a word
// for each slot, taken from below.
template <typename T>
inline void quads_group(const Packed &p, const Ready &ready, int64_t group, const float *x, float *out) {
    const T *values = static_cast<const T *>(p.values) + p.slot_start[group] * lanes;
    const uint8_t *at = ready.at + ready.start[group];
    vec sum[2][2] = {{_mm256_setzero_ps(), _mm256_setzero_ps()}, {_mm256_setzero_ps(), _mm256_setzero_ps()}};
    __m256i low, high;
    const auto slot = [&](const int32_t *from, int64_t s) {
        const vec four = _mm256_broadcast_ps(reinterpret_cast<const __m128 *>(x + from[s]));
        vec first, second;
        slot_values(values, first, second);
        sum[s % 2][0] = fma(first, _mm256_permutevar_ps(four, low), sum[s % 2][0]);
        sum[s % 2][1] = fma(second, _mm256_permutevar_ps(four, high), sum[s % 2][1]);
        low = _mm256_srli_epi32(low, 2), high = _mm256_srli_epi32(high, 2);
        values += lanes;
    };
    for (int64_t left = p.slots(group); left > 0; left -= quad_slots, at += quad_bytes) {
        low = _mm256_load_si256(reinterpret_cast<const __m256i *>(at));
        high = _mm256_load_si256(reinterpret_cast<const __m256i *>(at) + 1);
        const int32_t *from = reinterpret_cast<const int32_t *>(at + lanes * 4);
        if (left >= quad_slots) {
#pragma GCC unroll 16
            for (int64_t s = 0; s < quad_slots; ++s) slot(from, s);
        } else {
            for (int64_t s = 0; s < left; ++s) slot(from, s);
        }
    }
    const vec first = add(sum[0][0], sum[1][0]), second = add(sum[0][1], sum[1][1]);
    if (p.kind == Values::bf16) {
        const vec low4 = _mm256_unpacklo_ps(first, second), high4 = _mm256_unpackhi_ps(first, second);
        store(out, _mm256_permute2f128_ps(low4, high4, 0x20));
        store(out + 8, _mm256_permute2f128_ps(low4, high4, 0x31));
    } else {
        store(out, first), store(out + 8, second);
    }
}

template <typename T>
void permute_samples(const Packed &p, const Ready *ready, int64_t group, const float *x, int64_t ldx,
                     const uint8_t *tables, int64_t table_stride, int samples, float *out) {
    for (int n = 0; n < samples; ++n, x += ldx, tables += table_stride, out += lanes) {
        if (ready && ready->quads)
            quads_group<T>(p, *ready, group, x, out);
        else if (ready)
            ready_group<T>(p, *ready, group, tables, out);
        else if (p.bank == 16)
            permute_group<1, T>(p, group, tables, out);
        else if (p.bank == 32)
            permute_group<2, T>(p, group, tables, out);
        else
            permute_group<4, T>(p, group, tables, out);
    }
}
